"""Un-padded forward passes on a CPU equal passes over single rows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from evalsuite.models.inference.torch.model_runner import ModelRunner
from evalsuite.models.inference.torch.unpadding import UnpaddedLayout, make_unpadded_layout

ROWS = [[5, 6, 7, 8, 9, 10, 11], [12], [13, 14, 15, 16], [17, 18]]
MORE = [[20], [21, 22, 23, 24, 25], [26, 27]]


def test_pad_inverts_unpad() -> None:
    layout = UnpaddedLayout([3, 1, 2], torch.device("cpu"))
    x = torch.arange(18.0).view(3, 3, 2)
    assert layout.unpad(x)[0, :, 0].tolist() == [0, 2, 4, 6, 12, 14]
    real = torch.tensor([[True] * 3, [True, False, False], [True, True, False]])
    assert torch.equal(layout.pad(layout.unpad(x)), x * real[..., None])


def test_rows_of_equal_length_stay_padded() -> None:
    assert make_unpadded_layout([4, 4, 4], torch.device("cpu")) is None
    assert make_unpadded_layout([4, 4, 1], torch.device("cpu")) is not None


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
def test_rows_and_branches_equal_single_rows(build: Callable[..., Any], kind: str) -> None:
    runner = ModelRunner(build(kind).model)
    num_tokens: list[int] = []
    runner.decoder.layers[0].mlp.register_forward_hook(
        lambda module, given, out: num_tokens.append(out[..., 0].numel())
    )
    with torch.inference_mode():
        hidden, cache = runner.prefill(ROWS, keep=True)
        parent_rows = [2, 0, 1]
        after, _ = runner.prefill(MORE, parent=cache, parent_rows=parent_rows)
        assert num_tokens == [sum(map(len, ROWS)), sum(map(len, MORE))]
        for number, row in enumerate(ROWS):
            alone, _ = runner.prefill([row])
            torch.testing.assert_close(hidden[number, : len(row)], alone[0], rtol=1e-4, atol=1e-4)
        for number, (more, parent) in enumerate(zip(MORE, parent_rows, strict=True)):
            whole, _ = runner.prefill([ROWS[parent] + more])
            torch.testing.assert_close(
                after[number, : len(more)], whole[0, len(ROWS[parent]) :], rtol=1e-4, atol=1e-4
            )


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_rows_branch_from_a_truncated_cache(build: Callable[..., Any], kind: str) -> None:
    runner = ModelRunner(build(kind).model)
    prefix, lengths = list(range(4, 44)), [40, 17, 3]
    with torch.inference_mode():
        _, prefix_cache = runner.prefill([prefix], keep=True)
        assert prefix_cache is not None
        hidden, cache = runner.prefill(
            MORE, parent=prefix_cache.truncate(lengths), parent_rows=range(3), keep=True
        )
        assert cache is not None
        compacted = cache.compact()
        for number, (more, shared) in enumerate(zip(MORE, lengths, strict=True)):
            alone, own = runner.prefill([prefix[:shared] + more], keep=True)
            assert own is not None
            torch.testing.assert_close(hidden[number, : len(more)], alone[0, shared:], rtol=1e-4, atol=1e-4)
            length = shared + len(more)
            assert compacted.positions[number, :length].tolist() == list(range(length))
            assert compacted.valid[number].tolist() == [True] * length + [False] * (41 - length)
            for mine, theirs in zip(compacted.layers, own.layers, strict=True):
                assert mine.keys is not None
                assert theirs.keys is not None
                torch.testing.assert_close(
                    mine.keys[number, :, :length], theirs.keys[0], rtol=1e-4, atol=1e-4
                )


def test_students_stay_padded(build: Callable[..., Any]) -> None:
    """A recurrence needs padded rows."""
    assert not ModelRunner(build("gated_deltanet+softmax+gated_deltanet").model).unpads
