"""Recall without a template: a text's own words come back after other text.

    [opening of 96 tokens, with span S] [other text] [S again]

S has 8 to 32 tokens, and `gap` tokens lie between the beginnings of its two occurrences. Its first `CUE`
tokens at the second occurrence are the cue; a model that can look back predicts the others from it. Nothing
but the repetition says so: there is no question, key or instruction. At the first occurrence the same tokens
are predicted from the text before them alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from evalsuite.foundation import DataError
from evalsuite.models.diagnostics.distance import MULTIPLE, SplitModel, batched
from evalsuite.models.inference.batching import pad_right, to_device

CUE = 4
"""Tokens of the second occurrence that are not scored: they say which span it is."""
OPENING = 96
"""Tokens of the text that the span is taken from."""
FIRST = 16
"""Tokens before the first occurrence, at least."""
SHORTEST, LONGEST = 8, 32
"""Tokens of a span."""
ROWS = 4096
"""Predictions whose logits are held at once."""


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedSpan:
    """Token ids [length] that end with a span which also begins at `first`; it has `size` tokens."""

    tokens: NDArray[np.int64]
    first: int
    size: int

    @property
    def scored(self) -> NDArray[np.int64]:
        """Places of the scored tokens [2, size − CUE]: at the first occurrence, and at the second."""
        offsets = np.arange(CUE, self.size)
        return np.stack([self.first + offsets, len(self.tokens) - self.size + offsets])


def repeated_spans(
    stream: NDArray[np.integer], gap: int, count: int, *, seed: int = 0, end: int | None = None
) -> list[RepeatedSpan]:
    """Make sequences in which a span comes back.

    Openings are spread evenly over the stream; the text between is taken from half the stream away, so that
    it belongs to other documents.

    Args:
        stream: [length] ids of concatenated documents.
        gap: tokens between the beginnings of the two occurrences.
        count: number of sequences.
        seed: of places and sizes of the spans.
        end: token that separates documents; no span holds it. Openings without room for one are left out.

    Raises:
        DataError: the stream is too short for the gap, or has no span.
    """
    length = len(stream)
    if gap < OPENING or length < 2 * (gap + OPENING):
        raise DataError(
            f"gap = {gap}: must be {OPENING} or more, and the text has {length} tokens of "
            f"{2 * (gap + OPENING)} that it takes"
        )
    generator = np.random.default_rng([seed, gap])
    found = []
    for number in range(count):
        start = number * length // count
        size = int(generator.integers(SHORTEST, LONGEST, endpoint=True))
        first = int(generator.integers(FIRST, OPENING - size, endpoint=True))
        opening = np.take(stream, np.arange(start, start + OPENING), mode="wrap").astype(np.int64)
        span = opening[first : first + size]
        if end is not None and (span == end).any():
            continue
        other = start + length // 2 + np.arange(gap - (OPENING - first))
        between = np.take(stream, other, mode="wrap").astype(np.int64)
        found.append(RepeatedSpan(np.concatenate([opening, between, span]), first, size))
    if not found:
        raise DataError(f"no span of {SHORTEST} tokens within a document of the text")
    return found


@dataclass(frozen=True, slots=True)
class SpanScores:
    """How a model predicts the scored tokens of all spans, in order [tokens].

    right: whether the most likely token is the span's, at the second occurrence. gain: by how many nats the
    token is more likely there than at the first occurrence.
    """

    right: NDArray[np.bool_]
    gain: NDArray[np.float64]


@torch.inference_mode()
def span_scores(model: Any, spans: Sequence[RepeatedSpan], *, batch_tokens: int = 65_536) -> SpanScores:
    """Score the spans with a causal language model of transformers in eval mode.

    Args:
        batch_tokens: most padded tokens in one forward pass.

    Raises:
        ConfigError: the model's logits are not head(decoder(x)).
        DataError: its log-probabilities are not finite.
    """
    split = SplitModel(model)
    right: dict[int, NDArray[np.bool_]] = {}
    gain: dict[int, NDArray[np.float64]] = {}
    for places in batched([len(span.tokens) for span in spans], batch_tokens):
        tokens, _ = pad_right([spans[place].tokens for place in places], split.device, MULTIPLE)
        scored = [spans[place].scored.flatten() for place in places]
        rows = np.concatenate([row * tokens.shape[1] + each for row, each in enumerate(scored)])
        hits, nll = token_predictions(split, tokens, to_device(rows, split.device))
        ends = np.cumsum([len(each) for each in scored])[:-1]
        for place, hit, loss in zip(places, np.split(hits, ends), np.split(nll, ends), strict=True):
            if not np.isfinite(loss).all():
                raise DataError(f"span {place}: log-probabilities of a model are not finite")
            first, second = loss.reshape(2, -1)
            right[place], gain[place] = hit.reshape(2, -1)[1], first - second
    order = range(len(spans))
    return SpanScores(
        np.concatenate([right[place] for place in order]), np.concatenate([gain[place] for place in order])
    )


def token_predictions(
    split: SplitModel, tokens: Tensor, places: Tensor
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Whether each token of [B, T] at flattened `places` [N] is the most likely one, and its negative
    log-probability in nats."""
    hidden, targets = split.hidden(tokens)[places - 1], tokens.flatten()[places]
    hits, losses = [], []
    for rows, target in zip(hidden.split(ROWS), targets.split(ROWS), strict=True):
        logits = split.logits(rows)
        hits.append(logits.argmax(-1) == target)
        losses.append(cross_entropy(logits.float(), target, reduction="none").double())
    return torch.cat(hits).cpu().numpy(), torch.cat(losses).cpu().numpy()
