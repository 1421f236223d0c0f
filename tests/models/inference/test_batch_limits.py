"""Batch limits on a shared GPU."""

import pytest
import torch

from evalsuite.foundation import ConfigError
from evalsuite.models.inference.batch_limits import (
    MEMORY_LIMIT_ENV,
    compute_batch_limits,
    free_gpu_memory,
)


@pytest.fixture
def fractions(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A GPU of 100 GiB with 60 free; returns the memory fractions that the process sets."""
    set_to: list[float] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * 2**30, 100 * 2**30))
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: set_to.append(share)
    )
    return set_to


def test_the_limit_caps_free_memory(fractions: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.delenv(MEMORY_LIMIT_ENV, raising=False)
    assert (free_gpu_memory(gpu), fractions) == (60 * 2**30, [])
    for value, expected in (("20", 20), ("80", 60)):
        monkeypatch.setenv(MEMORY_LIMIT_ENV, value)
        assert free_gpu_memory(gpu) == expected * 2**30
    assert fractions == [0.2, 0.8]


@pytest.mark.parametrize("value", ["much", "0", "-3"])
def test_an_invalid_limit_is_refused(
    value: str, fractions: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MEMORY_LIMIT_ENV, value)
    with pytest.raises(ConfigError, match=MEMORY_LIMIT_ENV):
        free_gpu_memory(torch.device("cuda"))


GPU = torch.device("cuda")


@pytest.mark.parametrize(
    ("parameters", "expected"), [(500_000, 65_536), (134_515_008, 65_536), (1_700_000_000, 8_823)]
)
def test_small_models_read_more_tokens_before_padding_splits_a_pass(
    parameters: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (140 * 2**30, 140 * 2**30))
    limits = compute_batch_limits(GPU, parameters, 450_001, None)
    assert (limits.max_tokens, limits.min_tokens) == (65_536, expected)


@pytest.mark.parametrize("gibibytes", [7, 60, 61.5])
def test_limits_are_powers_of_two(gibibytes: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A little more or less free memory gives the same batches."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(gibibytes * 2**30), 80 * 2**30))
    limits = compute_batch_limits(GPU, 7_000_000_000, 450_001, None)
    for value in (limits.max_tokens, limits.cache_bytes):
        assert value & (value - 1) == 0, value
    free = 0.6 * gibibytes * 2**30
    assert free / 4 <= limits.cache_bytes <= free / 2
    assert free / 4 / 450_001 <= limits.max_tokens <= free / 2 / 450_001
