"""On a CPU, rows of different lengths are multiplied without their padding and come out as if read alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from evalsuite.models.engine.forward import Decoder
from evalsuite.models.engine.packing import Packing, packing

ROWS = [[5, 6, 7, 8, 9, 10, 11], [12], [13, 14, 15, 16], [17, 18]]
MORE = [[20], [21, 22, 23, 24, 25], [26, 27]]


def test_unpack_reverses_pack() -> None:
    packed = Packing([3, 1, 2], torch.device("cpu"))
    x = torch.arange(18.0).view(3, 3, 2)
    assert packed.pack(x)[0, :, 0].tolist() == [0, 2, 4, 6, 12, 14]
    real = torch.tensor([[True] * 3, [True, False, False], [True, True, False]])
    assert torch.equal(packed.unpack(packed.pack(x)), x * real[..., None])


def test_equal_rows_are_left_alone() -> None:
    assert packing([4, 4, 4], torch.device("cpu")) is None
    assert packing([4, 4, 1], torch.device("cpu")) is not None


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
def test_rows_and_their_forks_are_those_read_alone(build: Callable[..., Any], kind: str) -> None:
    decoder = Decoder(build(kind).model)
    seen: list[int] = []
    decoder.body.layers[0].mlp.register_forward_hook(
        lambda module, given, out: seen.append(out[..., 0].numel())
    )
    with torch.inference_mode():
        hidden, state = decoder.read(ROWS, keep=True)
        parents = [2, 0, 1]
        after, _ = decoder.read(MORE, parent=state, parents=parents)
        assert seen == [sum(map(len, ROWS)), sum(map(len, MORE))]
        for number, row in enumerate(ROWS):
            alone, _ = decoder.read([row])
            torch.testing.assert_close(hidden[number, : len(row)], alone[0], rtol=1e-4, atol=1e-4)
        for number, (more, parent) in enumerate(zip(MORE, parents, strict=True)):
            whole, _ = decoder.read([ROWS[parent] + more])
            torch.testing.assert_close(
                after[number, : len(more)], whole[0, len(ROWS[parent]) :], rtol=1e-4, atol=1e-4
            )


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_a_row_goes_on_from_within_another(build: Callable[..., Any], kind: str) -> None:
    decoder = Decoder(build(kind).model)
    trunk, cuts = list(range(4, 44)), [40, 17, 3]
    with torch.inference_mode():
        _, grown = decoder.read([trunk], keep=True)
        assert grown is not None
        hidden, state = decoder.read(MORE, parent=grown.cut(cuts), parents=range(3), keep=True)
        assert state is not None
        closed = state.closed()
        for number, (more, cut) in enumerate(zip(MORE, cuts, strict=True)):
            alone, own = decoder.read([trunk[:cut] + more], keep=True)
            assert own is not None
            torch.testing.assert_close(hidden[number, : len(more)], alone[0, cut:], rtol=1e-4, atol=1e-4)
            length = cut + len(more)
            assert closed.positions[number, :length].tolist() == list(range(length))
            assert closed.real[number].tolist() == [True] * length + [False] * (41 - length)
            for mine, theirs in zip(closed.layers, own.layers, strict=True):
                assert mine.keys is not None
                assert theirs.keys is not None
                torch.testing.assert_close(
                    mine.keys[number, :, :length], theirs.keys[0], rtol=1e-4, atol=1e-4
                )


def test_students_stay_padded(build: Callable[..., Any]) -> None:
    """A recurrence has to know its rows."""
    assert not Decoder(build("gated_deltanet+softmax+gated_deltanet").model).packs
