"""Are a model's numbers artefacts? The same questions, asked in every way that should not matter.

A sequence alone, padded, packed with others, batched by the engine, read token by token, in another
precision, on another backend: in exact arithmetic the log-probabilities would be equal. How far apart
they are says how small a difference between two models means nothing.
"""

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from evalsuite.foundation import DataError, MissingDependencyError
from evalsuite.models import StudentForCausalLM, set_backend
from evalsuite.models.checkpoints import Checkpoint
from evalsuite.models.engine.base import Engine
from evalsuite.models.engine.requests import GenerateAnswer, GenerateRequest, Sampling, ScoreRequest
from evalsuite.models.engine.torch_engine import TorchEngine

SCHEMA = 1
WRITTEN = 24
"""Tokens in a greedy answer."""

Logits = list[Tensor]
"""Log-probabilities [T, V] of each sequence."""


@dataclass(frozen=True, slots=True)
class Check:
    """One way of asking, compared with each sequence alone in a plain forward pass.

    Args:
        name: short name; what: what differs from the reference.
        largest: largest difference of a next token's log-probability (of the tokens in the text).
        changed_tokens: how often the most likely next token is another one; of: how many were compared.
        changed_answers: how many documents would get another answer (the likeliest continuation).
        answers: how many documents were compared.
        skipped: why the check gave no numbers, or None.
    """

    name: str
    what: str
    largest: float = 0.0
    changed_tokens: int = 0
    of: int = 0
    changed_answers: int = 0
    answers: int = 0
    skipped: str | None = None


def examine(
    checkpoint: Checkpoint, requests: Sequence[ScoreRequest], engine: Engine | None = None
) -> dict[str, Any]:
    """Ask `requests` in every way and compare.

    Args:
        checkpoint: the model, on the device and in the dtype that it is evaluated in.
        requests: documents with several continuations each; a few dozen are enough.
        engine: another engine that runs the same checkpoint in the same dtype, such as vLLM; it is asked too.

    Returns:
        A JSON-able result: `schema`, `label`, `weights_id`, `device`, `dtype`, `documents`, `checks`
        (the fields of `Check`), `largest` (over all checks of the same precision) and
        `changed_answers_share` (the largest share of answers that any check changed): a difference
        between two models below that share is within what these artefacts could explain.

    Raises:
        DataError: no request has two continuations, or the model's logits are not finite.
    """
    requests = [request for request in requests if len(request.continuations) > 1]
    if not requests:
        raise DataError("the doctor needs documents with at least two continuations")
    exam = _Exam(checkpoint, requests)
    checks = [exam.run(name, what, ask) for name, what, ask in exam.ways()] + [exam.written()]
    if engine is not None:
        checks += exam.elsewhere(engine)
    same = [check for check in checks if check.skipped is None and not check.name.startswith("precision")]
    shares = [check.changed_answers / check.answers for check in checks if check.answers]
    return {
        "schema": SCHEMA,
        "label": checkpoint.label,
        "weights_id": checkpoint.weights_id,
        "device": str(checkpoint.model.device),
        "dtype": str(checkpoint.model.dtype).removeprefix("torch."),
        "documents": len(requests),
        "checks": [asdict(check) for check in checks],
        "largest": max((check.largest for check in same), default=0.0),
        "changed_answers_share": max(shares, default=0.0),
    }


class _Exam:
    """The sequences (context and continuation together) of some requests, and what is known of them."""

    def __init__(self, checkpoint: Checkpoint, requests: Sequence[ScoreRequest]) -> None:
        self.checkpoint, self.requests = checkpoint, requests
        self.model = checkpoint.model.eval()
        self.sequences = [r.context + tokens for r in requests for tokens in r.continuations]
        self.reference = self.alone(self.model)
        if not all(bool(part.isfinite().all()) for part in self.reference):
            raise DataError(f"{checkpoint.label}: its log-probabilities are not finite (NaN in its logits)")
        self.expected = self._sums([_targets(x, y) for x, y in self._pairs(self.reference)])

    @torch.inference_mode()
    def written(self) -> Check:
        """Greedy answers written together and one at a time."""
        engine, asked, together = self.prose
        alone = [answer for request in asked for _, answer in engine.generate([request])]
        changed = sum(together[index].tokens != answer.tokens for index, answer in enumerate(alone))
        what = "greedy answers written together, compared with one at a time"
        return Check("generation", what, changed_answers=changed, answers=len(asked))

    @cached_property
    def prose(self) -> tuple[TorchEngine, list[GenerateRequest], dict[int, GenerateAnswer]]:
        """The engine, prompts, and the greedy answers that it writes to all of them together."""
        engine = TorchEngine(self.checkpoint, max_length=max(map(len, self.sequences)) + WRITTEN)
        asked = [GenerateRequest(request.context, Sampling(WRITTEN)) for request in self.requests]
        return engine, asked, dict(engine.generate(asked))

    def elsewhere(self, other: Engine) -> list[Check]:
        """Log-likelihoods and greedy answers of another engine.

        Raises:
            DataError: it refuses a request that this one answers.
        """
        scored = dict(other.score(self.requests))
        _, asked, here = self.prose
        there = dict(other.generate(asked))
        said = [answer.error for answer in scored.values()] + [answer.error for answer in there.values()]
        if errors := [error for error in said if error]:
            raise DataError(f"{self.checkpoint.label}: engine {other.name} does not answer: {errors[0]}")
        sums = [logprob for index in range(len(scored)) for logprob in scored[index].logprobs]
        return [
            Check(
                other.name,
                f"the engine {other.name}",
                largest=max(abs(a - b) for a, b in zip(sums, self.expected, strict=True)),
                changed_answers=self._changed(sums),
                answers=len(scored),
            ),
            Check(
                f"generation {other.name}",
                f"greedy answers written by {other.name}, compared with the in-process engine's",
                changed_answers=sum(here[index].tokens != there[index].tokens for index in here),
                answers=len(asked),
            ),
        ]

    def ways(self) -> list[tuple[str, str, Callable[[], Logits | list[float]]]]:
        """Name, description and function of each check."""
        on_gpu = self.model.device.type == "cuda"
        return [
            (
                "batched",
                "the engine: contexts read once, states forked, batches of similar length",
                self.batched,
            ),
            ("padded right", "one batch, padded on the right", lambda: self.padded("right")),
            (
                "padded left",
                "one batch, padded on the left, as harnesses generate",
                lambda: self.padded("left"),
            ),
            ("packed", "sequences packed into one row", self.packed),
            ("decode", "token by token from a cache", self.decoded),
            *(
                (f"precision {name}", f"all weights and activations in {name}", lambda d=dtype: self.cast(d))
                for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16))
                if dtype != self.model.dtype
            ),
            (
                "backend",
                "recurrence on the torch backend, not fla's" if on_gpu else "fla's kernels",
                self.backend,
            ),
        ]

    @torch.inference_mode()
    def run(self, name: str, what: str, ask: Callable[[], Logits | list[float]]) -> Check:
        """Ask in one way and compare with the reference."""
        check = Check(name, what, answers=len(self.requests))
        try:
            found = ask()
        except MissingDependencyError as error:
            return replace(check, answers=0, skipped=str(error))
        if isinstance(found[0], Tensor):
            if not all(bool(part.isfinite().all()) for part in found):
                return replace(check, answers=0, skipped="its log-probabilities are not finite")
            return self._compare(check, found)
        largest = max(abs(a - b) for a, b in zip(found, self.expected, strict=True))
        return replace(check, largest=largest, changed_answers=self._changed(found))

    def _compare(self, check: Check, found: Logits) -> Check:
        largest, changed, compared, targets = 0.0, 0, 0, []
        for tokens, mine, theirs in zip(self.sequences, self.reference, found, strict=True):
            a, b = _targets(tokens, mine), _targets(tokens, theirs)
            largest = max(largest, float((a - b).abs().max()))
            changed += int((mine.argmax(-1) != theirs.argmax(-1)).sum())
            compared += len(tokens)
            targets.append(b)
        answers = self._changed(self._sums(targets))
        return replace(check, largest=largest, changed_tokens=changed, of=compared, changed_answers=answers)

    def _pairs(self, found: Logits) -> list[tuple[tuple[int, ...], Tensor]]:
        return list(zip(self.sequences, found, strict=True))

    def _sums(self, targets: Sequence[Tensor]) -> list[float]:
        """Log-probability of each continuation from those of all tokens of its sequence."""
        lengths = [len(tokens) for request in self.requests for tokens in request.continuations]
        return [float(t[-length:].double().sum()) for t, length in zip(targets, lengths, strict=True)]

    def _changed(self, sums: Sequence[float]) -> int:
        return sum(a != b for a, b in zip(self._choices(sums), self._choices(self.expected), strict=True))

    def _choices(self, sums: Sequence[float]) -> list[int]:
        rest = iter(sums)
        groups = [list(itertools.islice(rest, len(request.continuations))) for request in self.requests]
        return [group.index(max(group)) for group in groups]

    @torch.inference_mode()
    def alone(self, model: PreTrainedModel) -> Logits:
        """Each sequence by itself, in one forward pass."""
        return [_logprobs(model(input_ids=self._ids(tokens)).logits[0]) for tokens in self.sequences]

    def batched(self) -> list[float]:
        """Log-probabilities of the continuations, from the engine."""
        longest = max(map(len, self.sequences))
        answers = dict(TorchEngine(self.checkpoint, max_length=longest).score(self.requests))
        return [logprob for index in range(len(answers)) for logprob in answers[index].logprobs]

    def padded(self, side: str) -> Logits:
        """All sequences of one batch of sixteen at a time, with an attention mask."""
        found: Logits = []
        for start in range(0, len(self.sequences), 16):
            rows = self.sequences[start : start + 16]
            width = max(map(len, rows))
            tokens = torch.zeros(len(rows), width, dtype=torch.long)
            mask = torch.zeros(len(rows), width, dtype=torch.long)
            for number, row in enumerate(rows):
                place = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
                tokens[number, place] = torch.tensor(row)
                mask[number, place] = 1
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            device = self.model.device
            logits = self.model(
                input_ids=tokens.to(device),
                attention_mask=mask.to(device),
                position_ids=positions.to(device),
            ).logits
            found += [_logprobs(row[real.bool()]) for row, real in zip(logits, mask, strict=True)]
        return found

    def packed(self) -> Logits:
        """Four sequences at a time in one row, each of which must not see the others."""
        found: Logits = []
        for start in range(0, len(self.sequences), 4):
            rows = self.sequences[start : start + 4]
            lengths = [len(row) for row in rows]
            positions = torch.cat([torch.arange(length) for length in lengths])[None]
            extra: dict[str, Any] = {"position_ids": positions.to(self.model.device)}
            if isinstance(self.model, StudentForCausalLM):
                extra["cu_seqlens"] = torch.tensor([0, *itertools.accumulate(lengths)]).to(self.model.device)
            joined = tuple(itertools.chain.from_iterable(rows))
            logits = self.model(input_ids=self._ids(joined), use_cache=False, **extra).logits[0]
            found += [_logprobs(part) for part in logits.split(lengths)]
        return found

    def decoded(self) -> Logits:
        """Token by token: the first half is read at once, the rest one token at a time from the cache."""
        found: Logits = []
        for tokens in self.sequences:
            ids = self._ids(tokens)
            half = (len(tokens) + 1) // 2
            out = self.model(input_ids=ids[:, :half], use_cache=True)
            parts, cache = [out.logits[0]], out.past_key_values
            for place in range(half, len(tokens)):
                out = self.model(input_ids=ids[:, place : place + 1], past_key_values=cache, use_cache=True)
                parts.append(out.logits[0])
                cache = out.past_key_values
            found.append(_logprobs(torch.cat(parts)))
        return found

    def cast(self, dtype: torch.dtype) -> Logits:
        """The whole model in another dtype."""
        return self.alone(copy.deepcopy(self.model).to(dtype))

    def backend(self) -> Logits:
        """Recurrences on the other backend."""
        if not isinstance(self.model, StudentForCausalLM):
            raise MissingDependencyError("no recurrence in this model")
        try:
            set_backend("torch" if self.model.device.type == "cuda" else "fla")
            return self.alone(self.model)
        finally:
            set_backend("auto")

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor([tokens], device=self.model.device)


def _logprobs(logits: Tensor) -> Tensor:
    return logits.float().log_softmax(-1).cpu()


def _targets(tokens: Sequence[int], logprobs: Tensor) -> Tensor:
    """Log-probability of each token after the first, given those before it: [T − 1]."""
    return logprobs[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]


def report(result: dict[str, Any]) -> str:
    """The result of `examine` as a text table."""
    lines = [f"{'check':<20}{'largest Δ log p':>16}{'tokens changed':>18}{'answers changed':>18}"]
    for check in result["checks"]:
        if check["skipped"]:
            lines.append(f"{check['name']:<20}  skipped: {check['skipped']}")
            continue
        tokens = f"{check['changed_tokens']}/{check['of']}" if check["of"] else "–"
        answers = f"{check['changed_answers']}/{check['answers']}"
        lines.append(f"{check['name']:<20}{check['largest']:>16.2e}{tokens:>18}{answers:>18}")
    share = 100 * result["changed_answers_share"]
    if share:
        lines.append(
            f"Differences between models below {share:.1f} points may be artefacts of how they are run."
        )
    else:
        # None in n: with 95 % confidence the true share is below three in n.
        most = 300 / result["documents"]
        lines.append(
            f"No answer of {result['documents']} changed: how the model is run explains at most {most:.1f} "
            "points of a difference between models (95 %)."
        )
    return "\n".join(lines)
