"""Probes of a student's states while it reads haystacks with one needle.

A document is cut into segments: the text before the needle, the needle, the text after it, and the question.
Everything is reduced on the device; what leaves it is a few numbers per document, layer, segment and head.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evalsuite.foundation import ConfigError, DataError
from evalsuite.models.decoder import StudentForCausalLM
from evalsuite.models.decoder.block import LayerActivations
from evalsuite.models.diagnostics.distance import batched
from evalsuite.models.diagnostics.state_analysis import (
    effective_rank,
    log_decay_per_token,
    readout_weights,
    split_states,
    weight_share,
    write_norm,
)
from evalsuite.models.inference.batching import pad_right
from evalsuite.models.mixers import RecurrentMixer, SoftmaxHeadsMixer, SoftmaxMixer
from evalsuite.models.ops.numerics import soft_capped

SEGMENTS = ("before", "needle", "after", "question")
Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Haystack:
    """Token ids of one document with a needle, its question and its answer.

    Args:
        doc_id: names the document in the results.
        tokens: prompt and answer; the prompt ends with the question.
        needle: bounds of the sentence that states the value.
        value: bounds of the value within the needle.
        question: first token of the question.
        answer: first token after the prompt.
        answer_value: first token of the answer that is part of the value, after a space.
    """

    doc_id: str
    tokens: tuple[int, ...]
    needle: tuple[int, int]
    value: tuple[int, int]
    question: int
    answer: int
    answer_value: int

    def __post_init__(self) -> None:
        order = (0, self.needle[0], self.value[0], self.value[1], self.needle[1], self.question, self.answer)
        if any(a > b for a, b in pairwise(order)) or self.value[0] == self.value[1]:
            raise DataError(f"document {self.doc_id}: no needle before the question")
        if not self.question < self.answer <= self.answer_value < len(self.tokens):
            raise DataError(f"document {self.doc_id}: no question before the answer, or no answer")

    @property
    def bounds(self) -> tuple[int, ...]:
        """Ends of the segments."""
        return (*self.needle, self.question, self.answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProbe:
    """Numbers of one layer while one document is read; arrays are [segments, heads], NaN where undefined.

    Args:
        layer: its index; mixer: the name of its mixer.
        log_decay: logarithm of the retention of a step, mean over tokens and channels.
        slowest_log_decay: the same of the channel that decays least.
        beta: β of the delta rule, mean over tokens; None under other rules.
        write: norm of a write ÷ norm of the state after the segment, mean over tokens.
        norm: Frobenius norm of the state after the segment.
        rank: effective rank of that state.
        retained: norm of what that state holds of the value ÷ norm of the same right after the value;
            undefined before the needle.
        readout: [heads], share of the readout's absolute weights that goes to the value's tokens, mean over
            the tokens from which the answer's value is predicted; for softmax attention its attention mass.
    """

    layer: int
    mixer: str
    log_decay: Array | None = None
    slowest_log_decay: Array | None = None
    beta: Array | None = None
    write: Array | None = None
    norm: Array | None = None
    rank: Array | None = None
    retained: Array | None = None
    readout: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentProbe:
    """One document: what was read of the needle, and the layers.

    Args:
        doc_id: the document.
        segment_tokens: tokens of each segment.
        answer_tokens: tokens of the answer; answer_right: those that are the most likely one after the
            answer before them. Greedy generation writes the answer if and only if all are.
        answer_logprob: log-probability of the answer, in nats.
        layers: recurrent and softmax layers; others are not probed.
    """

    doc_id: str
    segment_tokens: tuple[int, ...]
    answer_tokens: int
    answer_right: int
    answer_logprob: float
    layers: tuple[LayerProbe, ...]


@torch.no_grad()
def probe_states(
    student: StudentForCausalLM, haystacks: Sequence[Haystack], *, batch_tokens: int = 16_384
) -> Iterator[DocumentProbe]:
    """Read haystacks with their answers and probe every recurrent and softmax layer.

    Rows are padded on the right, which causal models do not see. In a layer with a window or with softmax
    heads the recurrence alone is probed.

    Args:
        student: in eval mode.
        haystacks: what is read.
        batch_tokens: most padded tokens of one forward pass.

    Yields:
        One result per document, batches in order of length.

    Raises:
        ConfigError: the model has no recurrent layer.
        DataError: a number is not finite; the message names document and layer.
    """
    blocks = student.model.layers if isinstance(student, StudentForCausalLM) else []
    mixers = [
        mixer.recurrent if isinstance(mixer, SoftmaxHeadsMixer) else mixer
        for mixer in (block.self_attn for block in blocks)
    ]
    if not any(isinstance(mixer, RecurrentMixer) for mixer in mixers):
        raise ConfigError("this model has no recurrent layer, so there is no state to probe")
    for places in batched([len(each.tokens) for each in haystacks], batch_tokens):
        batch = _Batch([haystacks[place] for place in places], mixers, student.device)
        output = student(
            input_ids=batch.tokens, use_cache=False, logits_to_keep=batch.predicting, observe=batch.probe
        )
        yield from batch.results(output.logits)


class _Batch:
    """Haystacks padded to one length, where their parts are, and the numbers of the layers."""

    def __init__(self, haystacks: Sequence[Haystack], mixers: Sequence[Any], device: torch.device) -> None:
        self.haystacks, self.mixers = haystacks, mixers
        self.layers: dict[int, tuple[str, dict[str, Tensor]]] = {}
        """Name of the mixer and numbers of each layer that is probed."""
        # The last token of an answer is predicted and never read.
        lengths = [len(each.tokens) - 1 for each in haystacks]
        self.tokens, _ = pad_right([each.tokens[:-1] for each in haystacks], device)
        width = self.tokens.shape[1]
        self.bounds = torch.tensor([each.bounds for each in haystacks])
        place = torch.arange(width)[None]
        starts = torch.cat([torch.zeros(len(haystacks), 1, dtype=torch.long), self.bounds[:, :-1]], 1)
        inside = (place[:, :, None] >= starts[:, None]) & (place[:, :, None] < self.bounds[:, None])
        self.segments = inside.float().to(device)
        """Whether a token is part of a segment: [B, T, S]."""
        values = torch.tensor([each.value for each in haystacks])
        self.value = ((place >= values[:, :1]) & (place < values[:, 1:])).to(device)
        self.value_end = values[:, 1:]
        # Rows with shorter answers repeat their last reading token, which then does not count.
        counts = torch.tensor([len(each.tokens) - each.answer_value for each in haystacks])
        last = torch.tensor(lengths) - 1
        reads = torch.arange(int(counts.max()))
        self.reads = torch.minimum(last[:, None] - counts[:, None] + 1 + reads, last[:, None]).to(device)
        """Tokens from which the value of the answer is predicted: [B, Q]."""
        counted = (reads[None] < counts[:, None]).float() / counts[:, None]
        self.read_weights = counted.to(device)
        answers = [
            torch.arange(each.answer - 1, length) for each, length in zip(haystacks, lengths, strict=True)
        ]
        self.predicting = torch.cat(answers).unique().to(device)
        """Positions whose logits predict a token of some answer, in ascending order."""

    def probe(self, number: int, activations: LayerActivations) -> None:
        """Probe a layer, as an `Observer`."""
        mixer = self.mixers[number]
        if isinstance(mixer, RecurrentMixer | SoftmaxMixer):
            measure: Any = _recurrent if isinstance(mixer, RecurrentMixer) else _softmax
            numbers = measure(mixer, activations.input, activations.position_embeddings, self)
            self.check(numbers["readout"], "readout", number)
            self.layers[number] = mixer.name, numbers

    def check(self, x: Tensor, what: str, layer: int) -> Tensor:
        """Return `x` [B, …]; raise DataError if a number is not finite."""
        finite = x.flatten(1).isfinite().all(1).tolist()
        if not all(finite):
            doc_id = self.haystacks[finite.index(False)].doc_id
            raise DataError(f"document {doc_id}: the {what} of layer {layer} is not finite")
        return x

    def mean_over_tokens(self, x: Tensor) -> Tensor:
        """Mean over the tokens of each segment, [B, T, …] → [B, S, …]; NaN for an empty segment."""
        total = torch.einsum("bts,btx->bsx", self.segments, x.flatten(2))
        return (total / self.segments.sum(1).unsqueeze(-1)).unflatten(2, x.shape[2:])

    def mean_over_reads(self, share: Tensor) -> Tensor:
        """Mean over the reading tokens, [B, H, Q] → [B, H]."""
        return torch.einsum("bhq,bq->bh", share, self.read_weights)

    def results(self, logits: Tensor) -> Iterator[DocumentProbe]:
        """Results of the documents from the numbers of the layers and the logits at `predicting`."""
        found = {
            number: (name, {key: value.float().cpu().numpy() for key, value in values.items()})
            for number, (name, values) in sorted(self.layers.items())
        }
        for row, haystack in enumerate(self.haystacks):
            answer = torch.tensor(haystack.tokens[haystack.answer :], device=logits.device)
            places = torch.arange(haystack.answer - 1, len(haystack.tokens) - 1, device=logits.device)
            predicted = logits[row, torch.searchsorted(self.predicting, places)].float()
            logprob = predicted.log_softmax(-1).gather(-1, answer[:, None]).sum()
            starts = (0, *haystack.bounds[:-1])
            yield DocumentProbe(
                doc_id=haystack.doc_id,
                segment_tokens=tuple(b - a for a, b in zip(starts, haystack.bounds, strict=True)),
                answer_tokens=len(answer),
                answer_right=int((predicted.argmax(-1) == answer).sum()),
                answer_logprob=float(logprob),
                layers=tuple(
                    LayerProbe(layer=number, mixer=name, **{key: value[row] for key, value in values.items()})
                    for number, (name, values) in found.items()
                ),
            )


def _recurrent(
    mixer: RecurrentMixer, x: Tensor, position_embeddings: tuple[Tensor, Tensor], batch: _Batch
) -> dict[str, Tensor]:
    inputs = mixer.prepare(x, position_embeddings).inputs
    inputs = replace(inputs, v=mixer.values(inputs))
    # The end of the value is a further bound, inside the needle: what the state then holds of it is the unit.
    bounds = torch.cat([batch.bounds[:, :1], batch.value_end, batch.bounds[:, 1:]], 1)
    states, parts = split_states(inputs, batch.value, bounds)
    held = torch.linalg.matrix_norm(parts)
    segments = [0, *range(2, bounds.shape[1])]
    states, retained = states[segments].transpose(0, 1), (held / held[1])[segments].transpose(0, 1)
    retained[:, 0] = torch.nan
    # Singular values of a state that is not finite cannot be computed.
    norm = batch.check(torch.linalg.matrix_norm(states), "norm", mixer.layer_idx)
    share = weight_share(readout_weights(inputs, batch.reads), batch.value)
    written = batch.mean_over_tokens(write_norm(inputs))
    log_decay = batch.mean_over_tokens(log_decay_per_token(inputs))
    found = {
        "log_decay": log_decay.mean(-1),
        "slowest_log_decay": log_decay.amax(-1),
        "write": torch.where(norm > 0, written / norm, torch.zeros_like(norm)),
        "norm": norm,
        "rank": effective_rank(states),
        "retained": retained,
        "readout": batch.mean_over_reads(share),
    }
    return found if inputs.beta is None else found | {"beta": batch.mean_over_tokens(inputs.beta.float())}


def _softmax(
    mixer: Any, x: Tensor, position_embeddings: tuple[Tensor, Tensor], batch: _Batch
) -> dict[str, Tensor]:
    """Attention mass on the value, at the reading tokens only."""
    q, k, _ = mixer.project(x, position_embeddings)
    q = q.gather(1, batch.reads[:, :, None, None].expand(-1, -1, *q.shape[2:]))
    k = k.repeat_interleave(mixer.num_key_value_groups, 2)
    scores = torch.einsum("bqhd,bshd->bhqs", q, k).float() * mixer.scaling
    scores = soft_capped(scores, mixer.attention_shape.soft_cap)
    places = torch.arange(k.shape[1], device=k.device)
    visible = mixer.span.visible(batch.reads[:, :, None], places)[:, None]
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return {"readout": batch.mean_over_reads(weight_share(weights, batch.value))}
