"""Spans that come back: where they stand, and what perfect and absent recall score."""

import numpy as np
import pytest
import torch
from transformers import PretrainedConfig

from evalsuite.foundation import DataError
from evalsuite.models.diagnostics.repeated_spans import (
    CUE,
    OPENING,
    repeated_spans,
    span_scores,
)

END = 0


@pytest.fixture
def stream():
    return np.random.default_rng(0).integers(1, 50, 4000)


@pytest.mark.parametrize("gap", [96, 200, 1000])
def test_a_span_stands_twice_with_the_gap_between(stream, gap):
    spans = repeated_spans(stream, gap, 40)
    assert len(spans) == 40
    for span in spans:
        (before, again) = span.scored
        np.testing.assert_array_equal(span.tokens[before], span.tokens[again])
        assert (again - before == gap).all()
        assert before[0] == span.first + CUE
        assert again[-1] == len(span.tokens) - 1
        assert 8 <= span.size <= 32
        assert span.first + span.size <= OPENING
    assert len({span.size for span in spans}) > 10


def test_the_text_between_is_from_elsewhere(stream):
    for number, span in enumerate(repeated_spans(stream, 500, 8)):
        start = number * 500
        np.testing.assert_array_equal(span.tokens[:OPENING], stream[start : start + OPENING])
        there = (start + 2000) % 4000
        between = np.take(stream, np.arange(there, there + 300), mode="wrap")
        np.testing.assert_array_equal(span.tokens[OPENING : OPENING + 300], between)


def test_the_seed_and_the_gap_alone_decide(stream):
    first, second, other = (
        [span.tokens.tolist() for span in repeated_spans(stream, 200, 5, seed=seed)] for seed in (1, 1, 2)
    )
    assert first == second != other


def test_no_span_crosses_documents(stream):
    ended = stream.copy()
    ended[::30] = END
    spans = repeated_spans(ended, 200, 100, end=END)
    assert 0 < len(spans) < 100
    assert all(END not in span.tokens[-span.size :] for span in spans)
    ended[::4] = END
    with pytest.raises(DataError, match="no span"):
        repeated_spans(ended, 200, 100, end=END)


@pytest.mark.parametrize(("length", "gap"), [(4000, 95), (500, 200)])
def test_texts_that_are_too_short_are_refused(stream, length, gap):
    with pytest.raises(DataError, match=f"gap = {gap}"):
        repeated_spans(stream[:length], gap, 4)


class Copier(torch.nn.Module):
    """Predicts what followed the latest earlier occurrence of the last `CUE` tokens; otherwise token 1."""

    def __init__(self, recall: bool) -> None:
        super().__init__()
        self.head = torch.nn.Linear(64, 64, bias=False)
        torch.nn.init.eye_(self.head.weight)
        self.recall, self.config = recall, PretrainedConfig()

    def get_output_embeddings(self):
        return self.head

    def get_decoder(self):
        return self.decode

    def decode(self, input_ids, use_cache):
        out = torch.zeros(*input_ids.shape, 64)
        for row, tokens in enumerate(input_ids.tolist()):
            seen: dict[tuple[int, ...], int] = {}
            for place in range(len(tokens)):
                key = tuple(tokens[max(0, place - CUE + 1) : place + 1])
                out[row, place, seen.get(key, 1) if self.recall else 1] = 10.0
                if place + 1 < len(tokens):
                    seen[key] = tokens[place + 1]
        return type("Output", (), {"last_hidden_state": out})

    def forward(self, input_ids, use_cache):
        hidden = self.decode(input_ids, use_cache).last_hidden_state
        return type("Output", (), {"logits": self.head(hidden)})


def test_scores_of_perfect_and_of_absent_recall(stream):
    # No token is 1, which a model without recall predicts.
    spans = repeated_spans(np.where(stream == 1, 2, stream), 120, 20)
    perfect = span_scores(Copier(recall=True), spans, batch_tokens=700)
    assert perfect.right.shape == (sum(span.size - CUE for span in spans),)
    assert perfect.right.mean() > 0.99
    assert perfect.gain.mean() > 9
    absent = span_scores(Copier(recall=False), spans)
    assert not absent.right.any()
    assert absent.gain == pytest.approx(np.zeros(len(absent.gain)), abs=1e-6)


def test_batches_do_not_change_scores(stream):
    spans = repeated_spans(stream, 150, 6)
    one, all_ = (span_scores(Copier(recall=True), spans, batch_tokens=size) for size in (1, 100_000))
    np.testing.assert_array_equal(one.right, all_.right)
    np.testing.assert_allclose(one.gain, all_.gain)
