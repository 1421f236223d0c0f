"""How much of a GPU is planned with."""

import pytest
import torch

from evalsuite.foundation import ConfigError
from evalsuite.models.engine.memory import LIMIT, usable


@pytest.fixture
def fractions(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A GPU of 100 GiB with 60 free; what share of it a process allows itself."""
    said: list[float] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * 2**30, 100 * 2**30))
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: said.append(share)
    )
    return said


def test_a_shared_gpu_is_used_up_to_the_limit(
    fractions: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = torch.device("cuda")
    monkeypatch.delenv(LIMIT, raising=False)
    assert (usable(gpu), fractions) == (60 * 2**30, [])
    for said, expected in (("20", 20), ("80", 60)):
        monkeypatch.setenv(LIMIT, said)
        assert usable(gpu) == expected * 2**30
    assert fractions == [0.2, 0.8]


@pytest.mark.parametrize("said", ["much", "0", "-3"])
def test_a_limit_that_is_no_number_is_refused(
    said: str, fractions: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LIMIT, said)
    with pytest.raises(ConfigError, match=LIMIT):
        usable(torch.device("cuda"))
