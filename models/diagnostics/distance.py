"""How far a model's next-token distributions are from its teacher's: KL divergence and top-1 agreement.

Teacher and students read the same tokens side by side on one device, and everything is reduced there: what
leaves the device is a few numbers per student, document and group of tokens. A group is whatever the caller
counts together: a token class, a position bucket, or both (`models.diagnostics.token_classes`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import linear, log_softmax

from evalsuite.foundation import ConfigError, DataError
from evalsuite.models.decoder.cache import CACHE
from evalsuite.models.decoder.head import LanguageModelHead
from evalsuite.models.decoder.precision import rounds_states, state_precision
from evalsuite.models.inference.batching import make_length_batches, pad_right, to_device
from evalsuite.models.inference.proof import largest_deviation

MULTIPLE = 64
"""Batches are padded to a multiple of so many tokens, so that few shapes occur."""


@dataclass(frozen=True, slots=True, eq=False)
class Passage:
    """Token ids of one document, and which of its tokens are compared.

    Args:
        doc_id: names the document in the results.
        tokens: int [length]; read by both models from the beginning.
        first: place of the first compared token, at least 1; all from there on are compared.
        groups: int [length − first], the group that each compared token counts in, from 0.
    """

    doc_id: str
    tokens: NDArray[np.integer]
    first: int
    groups: NDArray[np.integer]

    def __post_init__(self) -> None:
        if not 1 <= self.first < len(self.tokens):
            raise DataError(
                f"document {self.doc_id}: 'first' = {self.first} of {len(self.tokens)} tokens; the first "
                "one is read and cannot be predicted, and one must be compared"
            )
        if len(self.groups) != len(self.tokens) - self.first:
            raise DataError(
                f"document {self.doc_id}: {len(self.groups)} groups for "
                f"{len(self.tokens) - self.first} compared tokens"
            )


@dataclass(frozen=True, slots=True)
class DocumentDistance:
    """Sums over the compared tokens of one document that are of one group.

    Args:
        student: its name in the call.
        doc_id: the document.
        group: the group.
        tokens: compared tokens.
        kl: KL(teacher ‖ student) over the full vocabulary, summed, in nats.
        agreement: tokens at which teacher and student have the same most likely next token.
        teacher_nll, student_nll: negative log-likelihood of the tokens themselves, summed, in nats.
        teacher_right, student_right: tokens that are the model's most likely ones.
        retained: tokens that are the most likely ones of both.
    """

    student: str
    doc_id: str
    group: int
    tokens: int
    kl: float
    agreement: int
    teacher_nll: float
    student_nll: float
    teacher_right: int
    student_right: int
    retained: int


MEASURES = tuple(field.name for field in fields(DocumentDistance))[3:]
"""Columns of `compare_models`: sums over the tokens of one document and group."""
COUNTS = tuple(field.name for field in fields(DocumentDistance) if field.type is int)[1:]
"""Those that count tokens."""


def compare_logits(teacher: Tensor, student: Tensor, target: Tensor) -> Tensor:
    """Compare next-token distributions position by position, in float32.

    Args:
        teacher, student: logits [N, vocabulary] of any floating dtype.
        target: int64 [N], the tokens that follow in the text.

    Returns:
        float32 [N, 7], in the order of `MEASURES`: KL(teacher ‖ student) in nats, 1 where the most likely
        tokens are the same (the lower id of tied ones) and 0 elsewhere, both negative log-likelihoods of the
        target, and 1 where it is the most likely token of the teacher, of the student and of both. Equal
        logits give a KL of exactly 0.
    """
    log_p = log_softmax(teacher, -1, dtype=torch.float32)
    log_q = log_softmax(student, -1, dtype=torch.float32)
    difference = log_p - log_q
    p = log_p.exp()
    # Where p underflows to zero the term is zero, whatever the difference; infinite logits (a masked token)
    # would make it NaN.
    kl = torch.where(p > 0, p * difference, 0.0).sum(-1)
    first, second = teacher.argmax(-1), student.argmax(-1)
    places = target.unsqueeze(-1)
    nll = [-each.gather(-1, places).squeeze(-1) for each in (log_p, log_q)]
    right = [first == target, second == target, (first == target) & (second == target)]
    return torch.stack([kl, (first == second).float(), *nll, *(each.float() for each in right)], -1)


def batched(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Group items of similar length, the longest first.

    Args:
        lengths: of the items, in tokens.
        tokens: most padded tokens of a batch; a single longer item is a batch of its own.

    Returns:
        Lists of places in `lengths`; every place is in exactly one.
    """
    return make_length_batches([padded(length) for length in lengths], max_tokens=tokens, min_tokens=tokens)


@torch.inference_mode()
def compare_models(
    teacher: Any,
    students: Mapping[str, Any],
    passages: Sequence[Passage],
    *,
    groups: int,
    batch_tokens: int = 65_536,
    logits: int = 1 << 28,
) -> Iterator[DocumentDistance]:
    """Compare students with their teacher at the passages' tokens.

    Every model runs in its own dtype up to its last hidden state; the head's product and everything after
    it is float32, so that the rounding of half-precision logits is not taken for a distance. Rows are padded
    on the right, which causal models do not see. The teacher may be among the students: its distance is
    exactly 0.

    Args:
        teacher: a causal language model of transformers in eval mode, whose logits are head(decoder(x)).
        students: the same by name, with the teacher's vocabulary, on the teacher's device.
        passages: what is read; ids outside the vocabulary are refused.
        groups: number of groups; every group of `passages` is below it.
        batch_tokens: most padded tokens in one forward pass.
        logits: most logits (positions × vocabulary) that one model holds at once.

    Yields:
        Per batch, student, document and non-empty group its sums; batches are in order of length.

    Raises:
        ConfigError: vocabularies differ, or a model's logits are not head(decoder(x)).
        DataError: a group or token id is out of range, or a model's log-probabilities are not finite.
    """
    head = SplitModel(teacher)
    heads = {name: SplitModel(student) for name, student in students.items()}
    for name, other in heads.items():
        if other.vocabulary != head.vocabulary:
            raise ConfigError(
                f"'{name}' has a vocabulary of {other.vocabulary}, its teacher one of {head.vocabulary}"
            )
    for passage in passages:
        if int(passage.groups.max()) >= groups or int(passage.groups.min()) < 0:
            raise DataError(f"document {passage.doc_id}: a group is not between 0 and {groups - 1}")
        if int(passage.tokens.max()) >= head.vocabulary or int(passage.tokens.min()) < 0:
            raise DataError(f"document {passage.doc_id}: a token id is outside the vocabulary")
    step = max(1, logits // head.vocabulary)
    for places in batched([len(passage.tokens) for passage in passages], batch_tokens):
        batch = [passages[place] for place in places]
        tokens, rows, targets, cells = _collate(batch, groups, head.device)
        hidden = head.hidden(tokens)[rows]
        sums = {}
        for name, student in students.items():
            # The teacher compared with itself need not be read twice.
            mine = hidden if student is teacher else heads[name].hidden(tokens)[rows]
            total = torch.zeros(len(batch) * groups, len(MEASURES), dtype=torch.float64, device=head.device)
            for start in range(0, len(rows), step):
                piece = slice(start, start + step)
                found = compare_logits(
                    head.logits(hidden[piece]), heads[name].logits(mine[piece]), targets[piece]
                )
                counted = torch.cat([torch.ones_like(found[:, :1]), found], -1).double()
                total.index_add_(0, cells[piece], counted)
            sums[name] = total
        for name, total in sums.items():
            yield from _rows(name, batch, total.cpu().numpy(), groups)


class SplitModel:
    """The two halves of a causal language model: decoder, and head in float32."""

    def __init__(self, model: Any) -> None:
        self._head = LanguageModelHead.of(model)
        self._body = model.get_decoder()
        self._weight = self._head.weight.detach().float()
        self._bias = None if self._head.bias is None else self._head.bias.detach().float()
        self.device, self.vocabulary = self._weight.device, int(self._weight.shape[0])
        with state_precision(model, None):
            self._check(model)
        self._rounds_states = rounds_states(model)

    def _check(self, model: Any) -> None:
        """Raise ConfigError for a model whose logits are not head(decoder(x))."""
        tokens = torch.arange(min(16, self.vocabulary), device=self.device)[None]
        whole = model(input_ids=tokens, use_cache=False).logits[0]
        deviation = largest_deviation([whole], [self.logits(self._read(tokens).flatten(0, 1))])
        if deviation is not None:
            raise ConfigError(
                f"{type(model).__name__}: distances of this architecture cannot be measured: the head on the "
                f"decoder's output differs from its own logits by up to {deviation:.3g}"
            )

    def hidden(self, tokens: Tensor) -> Tensor:
        """Last hidden states of token ids [B, T], flattened to [B · T, width].

        A model that rounds its states reads token by token, as in generation.
        """
        if not self._rounds_states:
            return self._read(tokens).flatten(0, 1)
        cache = self._body.new_cache()
        steps = [self._read(tokens[:, [place]], cache) for place in range(tokens.shape[1])]
        return torch.cat(steps, 1).flatten(0, 1)

    def _read(self, tokens: Tensor, cache: Any = None) -> Tensor:
        read: Tensor = self._body(
            input_ids=tokens, use_cache=cache is not None, **({} if cache is None else {CACHE: cache})
        ).last_hidden_state
        return read

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits float32 [N, vocabulary] of hidden states [N, width]."""
        return self._head.transform(linear(hidden.float(), self._weight, self._bias))


def padded(length: int) -> int:
    """Tokens of a row with so many, with padding."""
    return -(-length // MULTIPLE) * MULTIPLE


def _collate(
    batch: Sequence[Passage], groups: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens [B, T]; and per compared token its row of the flattened hidden states, its id and its cell."""
    # The last token is predicted and never read.
    tokens, _ = pad_right([passage.tokens[:-1] for passage in batch], device, MULTIPLE)
    rows, targets, cells = [], [], []
    for number, passage in enumerate(batch):
        start = number * tokens.shape[1] - 1
        rows.append(start + np.arange(passage.first, len(passage.tokens)))
        targets.append(passage.tokens[passage.first :])
        cells.append(number * groups + np.asarray(passage.groups, dtype=np.int64))
    places, ids, found = (
        to_device(np.concatenate(each).astype(np.int64), device) for each in (rows, targets, cells)
    )
    return tokens, places, ids, found


def _rows(
    student: str, batch: Sequence[Passage], sums: NDArray[np.float64], groups: int
) -> Iterator[DocumentDistance]:
    if not np.isfinite(sums).all():
        broken = int((~np.isfinite(sums)).any(-1).argmax())
        raise DataError(
            f"document {batch[broken // groups].doc_id}: the log-probabilities of '{student}' or of its "
            "teacher are not finite"
        )
    for cell in np.flatnonzero(sums[:, 0]).tolist():
        found = dict(zip(MEASURES, sums[cell].tolist(), strict=True))
        counts = {name: int(found.pop(name)) for name in COUNTS}
        yield DocumentDistance(
            student=student, doc_id=batch[cell // groups].doc_id, group=cell % groups, **counts, **found
        )
