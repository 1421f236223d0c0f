"""Attention of new tokens alone is softmax attention within the span, with one kernel or several."""

import pytest
import torch

from evalsuite.models.mixers.cached_attention import AttentionMasks
from evalsuite.models.mixers.interface import AttentionSpan


@pytest.mark.parametrize("length", [5, 6, 9, 12, 13, 30])
@pytest.mark.parametrize("heads", [(4, 4), (4, 1)])
@pytest.mark.parametrize(
    ("span", "cap"),
    [
        (AttentionSpan(), None),
        (AttentionSpan(6), None),
        (AttentionSpan(6, sinks=2), None),
        (AttentionSpan(6), 3.0),
    ],
)
def test_attention_is_that_of_the_span(
    length: int, heads: tuple[int, int], span: AttentionSpan, cap: float | None
) -> None:
    torch.manual_seed(length)
    query = torch.randn(2, heads[0], length, 8)
    key, value = torch.randn(2, 2, heads[1], length, 8)
    places = torch.arange(length)[None]
    masks = AttentionMasks(places.expand(2, -1), places, None, torch.float32)
    scores = query @ key.repeat_interleave(heads[0] // heads[1], 1).mT * 0.3
    scores = scores if cap is None else cap * (scores / cap).tanh()
    expected = span.softmax(scores, None) @ value.repeat_interleave(heads[0] // heads[1], 1)
    found = masks.attend(query, key, value, span, 0.3, cap)
    torch.testing.assert_close(found, expected.transpose(1, 2))
