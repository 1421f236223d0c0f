"""The decode kernel computes softmax attention over each row's own keys.

Runs on a CUDA device, or on a CPU under Triton's interpreter (see test_interpreter.py).
"""

import pytest
import torch

from tests.models.ops.device import DEVICE, INTERPRETED, NEEDS_DEVICE

pytestmark = NEEDS_DEVICE


@pytest.mark.parametrize(
    ("rows", "heads", "kv_heads", "length", "width"),
    [(2, 4, 2, 300, 64), (3, 3, 1, 1100, 80), (1, 2, 2, 70, 16), (2, 9, 3, 600, 64)],
)
@pytest.mark.parametrize("waves", [0, 64])
@pytest.mark.parametrize("window", [None, 1, 290])
def test_rows_attend_to_their_own_keys(
    rows: int,
    heads: int,
    kv_heads: int,
    length: int,
    width: int,
    waves: int,
    window: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from evalsuite.models.ops.attention import decode as module
    from evalsuite.models.ops.attention import decode_attention

    # Without waves there is one part; with many, as many as the length permits.
    monkeypatch.setattr(module, "WAVES", waves)
    torch.manual_seed(0)
    dtype = torch.float32 if INTERPRETED else torch.bfloat16
    stored = torch.randn(2, rows + 1, kv_heads, length + 30, width, device=DEVICE, dtype=dtype)
    # Nothing behind a row's view may be read.
    stored[:, :, :, length:] = torch.nan
    key, value = stored[:, :rows, :, :length]
    query = torch.randn(rows, 1, heads, width, device=DEVICE, dtype=dtype).transpose(1, 2)
    positions = torch.randint(0, length, (rows,), device=DEVICE)
    positions[0], positions[-1] = 0, length - 1
    if window is not None:
        # Nothing before the window may be read either.
        early = torch.arange(length, device=DEVICE) <= positions[:, None] - window
        key, value = (x.masked_fill(early[:, None, :, None], torch.nan) for x in (key, value))
    parts, _ = module.split(rows * kv_heads, length, query.device)
    assert parts == 1 or waves
    found = module.decode_attention(query, key, value, positions, width**-0.5, window)
    exact = query.double(), key.double(), value.double()
    expected = decode_attention.reference(*exact, positions, width**-0.5, window)
    assert found.shape == (rows, 1, heads, width)
    error = (found.double() - expected).norm() / expected.norm()
    assert error < (1e-5 if INTERPRETED else 1e-2)


def test_parts_cover_all_keys() -> None:
    from evalsuite.models.ops.attention.decode import BLOCK_KEYS, MIN_KEYS, split

    for pairs in (1, 3, 24, 768):
        for length in (1, 64, 1000, 32832, 131136):
            parts, keys = split(pairs, length, torch.device(DEVICE))
            assert parts * keys >= length
            assert keys % BLOCK_KEYS == 0
            assert parts == 1 or length // parts >= MIN_KEYS
