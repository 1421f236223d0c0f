"""Consistency checks: do batching, padding, packing, decoding or dtype change a model's scores?

The same documents are evaluated in several ways that are equivalent in exact arithmetic. The deviations
between them bound the smallest difference between two models that is not an artefact of how they are run.
"""

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from evalsuite.foundation import ConfigError, DataError, MissingDependencyError
from evalsuite.models import StudentForCausalLM, kernel_policy
from evalsuite.models.checkpoints.load import Checkpoint
from evalsuite.models.decoder.precision import state_precision
from evalsuite.models.diagnostics.own_paths import (
    Logprobs,
    OwnPathResult,
    Rows,
    Side,
    check_own_paths,
    format_own_paths,
    logprobs,
    packed,
    padded,
)
from evalsuite.models.diagnostics.served import (
    NUM_GENERATED,
    Answers,
    Evaluated,
    ServedPass,
    greedy_prompts,
    run_served_passes,
    served_divergence,
)
from evalsuite.models.inference.base import Engine
from evalsuite.models.inference.in_process import InProcessEngine
from evalsuite.models.inference.proof import UnsupportedModelError, refuse_unsupported
from evalsuite.models.inference.requests import (
    GenerateResponse,
    ScoreRequest,
    ScoreResponse,
)
from evalsuite.models.inference.settling import rounding
from evalsuite.models.inference.torch.engine import open_in_process
from evalsuite.models.inference.transformers.engine import TransformersEngine
from evalsuite.models.inference.transformers.runner import CachedReader, PlainRunner
from evalsuite.models.mixers import RecurrentMixer

SCHEMA = 3
MIN_TOKENS = 4
"""Different tokens in all documents, without which order and padding change nothing."""
OWN_TEXTS = 32
"""Texts on which paths of the model's own code are compared, at most."""


@dataclass(frozen=True, slots=True)
class ConsistencyCheck:
    """One variant, compared with the reference: each sequence alone in a plain forward pass.

    Args:
        name: short name; description: the difference from the reference.
        max_difference: largest difference of a token's log-probability, in nats.
        changed_tokens: number of argmax disagreements; num_tokens: number of tokens compared.
        changed_responses: number of documents whose response (most likely continuation) changes.
        num_documents: number of documents compared.
        skipped: why the check was not run, or None.
    """

    name: str
    description: str
    max_difference: float = 0.0
    changed_tokens: int = 0
    num_tokens: int = 0
    changed_responses: int = 0
    num_documents: int = 0
    skipped: str | None = None


def run_consistency_checks(
    checkpoint: Checkpoint,
    requests: Sequence[ScoreRequest],
    engine: Engine | None = None,
    own_model: PreTrainedModel | None = None,
    load: Sequence[ScoreRequest] = (),
) -> dict[str, Any]:
    """Evaluate `requests` in every variant and compare.

    Args:
        checkpoint: the model, on the device and in the dtype of the evaluation.
        requests: documents with several continuations each; a few dozen are enough.
        engine: another engine to compare with, such as vLLM, with the same checkpoint in the same dtype.
        own_model: the model in transformers' code, if the checkpoint has it as our decoder.
        load: other documents, which the other engine runs together with those compared in one of its checks.

    Returns:
        A JSON-serializable result: `schema`, `label`, `weights_id`, `device`, `dtype`, `documents`, `checks`
        (the fields of `ConsistencyCheck`), `max_difference` (over all checks of the same precision) and
        `max_changed_share` (the largest share of responses that any check changes). A difference between two
        models below that share can be an artefact of how they are run. `own_paths`: what its users may run
        into elsewhere, on `own_texts` texts (the fields of `OwnPathResult`). With another engine, `served`:
        its `passes` (the fields of `ServedPass`) and `divergence` (those of `ServedDivergence`, or None).

    Raises:
        DataError: no request has two continuations, all have the same few tokens, the model's logits are not
            finite, or a request fails in the other engine.
        UnsupportedModelError: the model cannot be run at all.
    """
    requests = [request for request in requests if len(request.continuations) > 1]
    if not requests:
        raise DataError("the consistency checks need documents with at least two continuations")
    runner = _CheckRunner(checkpoint, requests)
    checks = [runner.run(*variant) for variant in runner.variants()]
    served = None
    if engine is not None:
        evaluated = runner.evaluated()
        passes = run_served_passes(evaluated, engine, load)
        checks += itertools.chain.from_iterable(map(_checks_of_pass, passes))
        divergence = served_divergence(evaluated, engine)
        served = {
            "passes": [asdict(each) for each in passes],
            "divergence": divergence and asdict(divergence),
        }
    same = [check for check in checks if check.skipped is None and not check.name.startswith("precision")]
    shares = [check.changed_responses / check.num_documents for check in checks if check.num_documents]
    return {
        "schema": SCHEMA,
        "label": checkpoint.label,
        "weights_id": checkpoint.weights_id,
        "device": str(checkpoint.model.device),
        "dtype": _dtype(checkpoint.model),
        "documents": len(requests),
        "checks": [asdict(check) for check in checks],
        "own_texts": min(len(requests), OWN_TEXTS),
        "own_paths": [asdict(path) for path in runner.own_paths(own_model or checkpoint.model)],
        "max_difference": max((check.max_difference for check in same), default=0.0),
        "max_changed_share": max(shares, default=0.0),
        **({"served": served} if served else {}),
    }


class _NotApplicableError(Exception):
    """Why a check says nothing about this model."""


class _CheckRunner:
    """The sequences (context + continuation) of some requests and their reference log-probabilities."""

    def __init__(self, checkpoint: Checkpoint, requests: Sequence[ScoreRequest]) -> None:
        self.checkpoint, self.requests = checkpoint, requests
        self.model = checkpoint.model.eval()
        self.prompts = greedy_prompts(requests)
        self.sequences = [r.context + tokens for r in requests for tokens in r.continuations]
        if len(distinct := set(itertools.chain.from_iterable(self.sequences))) < MIN_TOKENS:
            raise DataError(
                f"{checkpoint.label}: the documents have {len(distinct)} different tokens, of which no check "
                "can tell anything; is this the tokenizer of the model?"
            )
        with refuse_unsupported(
            f"{type(self.model).__name__}: transformers cannot run it on plain token ids"
        ):
            self.reference = self.unbatched(self.model)
        if not all(bool(part.isfinite().all()) for part in self.reference):
            raise DataError(f"{checkpoint.label}: its log-probabilities are not finite (NaN in its logits)")
        pairs = zip(self.sequences, self.reference, strict=True)
        self.expected = self._continuation_sums([_target_logprobs(*pair) for pair in pairs])

    @cached_property
    def engine(self) -> InProcessEngine:
        """The in-process engine that runs the model."""
        return open_in_process(self.checkpoint, max_length=max(map(len, self.sequences)) + NUM_GENERATED)

    @cached_property
    def greedy(self) -> dict[int, GenerateResponse]:
        """Its greedy responses to all prompts together."""
        return dict(self.engine.generate(self.prompts))

    def own_paths(self, model: PreTrainedModel) -> list[OwnPathResult]:
        """Paths of a model's own code, on the first continuation of each of some documents."""
        places = self._first_continuations()[:OWN_TEXTS]
        texts = [self.sequences[each] for each in places]
        if model is self.model:
            return check_own_paths(model, texts, [self.reference[each] for each in places])
        return check_own_paths(model.eval(), texts, self.unbatched(model, texts))

    def _first_continuations(self) -> list[int]:
        """Places of the sequences with the first continuation of each document."""
        ends = itertools.accumulate((len(request.continuations) for request in self.requests), initial=0)
        return list(ends)[:-1]

    def evaluated(self) -> Evaluated:
        """What an engine's responses are compared with."""
        scored: dict[int, ScoreResponse] = {}
        leads: list[float] = []
        first = 0
        for index, request in enumerate(self.requests):
            last = first + len(request.continuations)
            # Those that are negative belong to continuations that are not greedy.
            margins = [
                _lead(self.reference[place][-len(tokens) - 1 : -1], tokens)
                for place, tokens in zip(range(first, last), request.continuations, strict=True)
            ]
            leads += map(abs, margins)
            scored[index] = ScoreResponse(
                tuple(self.expected[first:last]),
                tuple(margin >= 0 for margin in margins),
                tuple(map(len, request.continuations)),
            )
            first = last
        texts = [(self.sequences[each], self.reference[each]) for each in self._first_continuations()]
        return Evaluated(
            self.engine,
            sorted(self.engine.eos_ids),
            self.requests,
            Answers(scored, self.greedy),
            leads,
            texts,
            rounding({"dtype": _dtype(self.model)}),
        )

    def variants(self) -> list[tuple[str, str, Callable[[], Logprobs | list[float] | int]]]:
        """Name, description and function of each variant."""
        on_gpu = self.model.device.type == "cuda"
        return [
            (
                "batched",
                "the engine: shared prefill of contexts, branched caches, batches of similar length",
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
                (
                    f"precision {name}",
                    f"all parameters and activations in {name}",
                    lambda d=dtype: self.cast(d),
                )
                for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16))
                if dtype != self.model.dtype
            ),
            (
                "backend",
                "the recurrence on the torch backend instead of fla" if on_gpu else "fla's kernels",
                self.other_backend,
            ),
            (
                "precision state",
                "the recurrent state rounded to bfloat16 whenever it is stored, token by token from a cache",
                self.rounded_state,
            ),
            (
                "generation",
                "greedy generation in a batch, compared with one prompt at a time",
                self.greedy_changes,
            ),
        ]

    @torch.inference_mode()
    def run(
        self, name: str, description: str, variant: Callable[[], Logprobs | list[float] | int]
    ) -> ConsistencyCheck:
        """Run one variant and compare it with the reference."""
        check = ConsistencyCheck(name, description, num_documents=len(self.requests))
        try:
            result = variant()
        except (MissingDependencyError, UnsupportedModelError, _NotApplicableError) as error:
            return replace(check, num_documents=0, skipped=str(error))
        if isinstance(result, int):
            return replace(check, changed_responses=result)
        if isinstance(result[0], Tensor):
            if not all(bool(part.isfinite().all()) for part in result):
                return replace(check, num_documents=0, skipped="its log-probabilities are not finite")
            return self._compare(check, result)
        largest = max(abs(a - b) for a, b in zip(result, self.expected, strict=True))
        return replace(check, max_difference=largest, changed_responses=self._num_changed(result))

    def _compare(self, check: ConsistencyCheck, found: Logprobs) -> ConsistencyCheck:
        largest, changed, compared, targets = 0.0, 0, 0, []
        for tokens, reference, other in zip(self.sequences, self.reference, found, strict=True):
            a, b = _target_logprobs(tokens, reference), _target_logprobs(tokens, other)
            largest = max(largest, float((a - b).abs().max()))
            changed += int((reference.argmax(-1) != other.argmax(-1)).sum())
            compared += len(tokens)
            targets.append(b)
        return replace(
            check,
            max_difference=largest,
            changed_tokens=changed,
            num_tokens=compared,
            changed_responses=self._num_changed(self._continuation_sums(targets)),
        )

    def _continuation_sums(self, targets: Sequence[Tensor]) -> list[float]:
        """Log-probability of each continuation, from those of all tokens of its sequence."""
        lengths = [len(tokens) for request in self.requests for tokens in request.continuations]
        return [float(t[-length:].double().sum()) for t, length in zip(targets, lengths, strict=True)]

    def _num_changed(self, sums: Sequence[float]) -> int:
        return sum(a != b for a, b in zip(self._choices(sums), self._choices(self.expected), strict=True))

    def _choices(self, sums: Sequence[float]) -> list[int]:
        rest = iter(sums)
        groups = [list(itertools.islice(rest, len(request.continuations))) for request in self.requests]
        return [group.index(max(group)) for group in groups]

    @torch.inference_mode()
    def unbatched(self, model: PreTrainedModel, texts: Rows | None = None) -> Logprobs:
        """The reference: each sequence, or each of these texts, alone in one forward pass."""
        texts = self.sequences if texts is None else texts
        return [logprobs(model(input_ids=self._ids(tokens)).logits[0]) for tokens in texts]

    def batched(self) -> list[float]:
        """Log-probabilities of the continuations, from the engine."""
        responses = dict(self.engine.score(self.requests))
        return [logprob for index in range(len(responses)) for logprob in responses[index].logprobs]

    def greedy_changes(self) -> int:
        """Number of greedy responses that differ between all prompts together and one at a time."""
        single = [response for prompt in self.prompts for _, response in self.engine.generate([prompt])]
        return sum(self.greedy[index].tokens != each.tokens for index, each in enumerate(single))

    def _batches(self, size: int) -> list[list[tuple[int, ...]]]:
        return [self.sequences[start : start + size] for start in range(0, len(self.sequences), size)]

    def padded(self, side: Side) -> Logprobs:
        """Batches of sixteen padded sequences, with an attention mask."""
        plain = self.engine.runner if isinstance(self.engine, TransformersEngine) else None
        if plain is not None and (side == "left" or plain.batching != "padded"):
            raise _NotApplicableError(
                f"evalsuite never pads texts of {type(self.model).__name__} on the {side}"
            )
        found: Logprobs = []
        for rows in self._batches(16):
            # An engine's own padding may take neither mask nor positions.
            found += (
                padded(self.model, rows, side)
                if plain is None
                else [logprobs(row[: len(text)]) for row, text in zip(plain.logits(rows), rows, strict=True)]
            )
        return found

    def packed(self) -> Logprobs:
        """Four sequences packed into one row, isolated from each other."""
        if isinstance(self.engine, TransformersEngine):
            raise _NotApplicableError(f"evalsuite never packs texts of {type(self.model).__name__}")
        found: Logprobs = []
        for rows in self._batches(4):
            extra: dict[str, Any] = {}
            if isinstance(self.model, StudentForCausalLM):
                bounds = [0, *itertools.accumulate(map(len, rows))]
                extra["cu_seqlens"] = torch.tensor(bounds).to(self.model.device)
            found += packed(self.model, rows, **extra)
        return found

    def decoded(self) -> Logprobs:
        """Prefill of the first half of each sequence, then token by token from the cache."""
        engine = self.engine
        if isinstance(engine, TransformersEngine) and engine.runner.caching == "never":
            raise _NotApplicableError(
                f"evalsuite never uses the cache of {type(self.model).__name__}, which is not proved to give "
                "the logits of the text read whole"
            )
        found: Logprobs = []
        for tokens in self.sequences:
            ids = self._ids(tokens)
            half = (len(tokens) + 1) // 2
            reader = CachedReader(PlainRunner(self.model))
            parts = [self.model(input_ids=ids[:, :half]).logits[0, :-1], reader.read(ids[:, :half])]
            parts += [reader.read(ids[:, place : place + 1]) for place in range(half, len(tokens))]
            found.append(logprobs(torch.cat(parts)))
        return found

    def cast(self, dtype: torch.dtype) -> Logprobs:
        """The parameters in another dtype.

        Rotary frequencies and fixed decays are buffers that stay in float32, as when a checkpoint is loaded.
        """
        model = copy.deepcopy(self.model)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
        try:
            return self.unbatched(model)
        except Exception as error:  # Foreign code may mix dtypes and fail in any way.
            name = str(dtype).removeprefix("torch.")
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise _NotApplicableError(f"{type(model).__name__} does not run in {name} ({reason})") from error

    def other_backend(self) -> Logprobs:
        """The recurrence on the other backend."""
        if not any(isinstance(module, RecurrentMixer) for module in self.model.modules()):
            raise _NotApplicableError(f"{type(self.model).__name__} has no recurrence of two backends")
        with kernel_policy("torch" if self.model.device.type == "cuda" else "triton"):
            return self.unbatched(self.model)

    def rounded_state(self) -> Logprobs:
        """As `decoded`, with the state in bfloat16."""
        _ = self.engine  # Its proofs are of exact states.
        with ExitStack() as stack:
            try:
                stack.enter_context(state_precision(self.model, "bf16"))
            except ConfigError as error:
                raise _NotApplicableError(str(error)) from error
            return self.decoded()

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor([tokens], device=self.model.device)


def _checks_of_pass(found: ServedPass) -> Iterator[ConsistencyCheck]:
    """The rows of log-likelihoods and of greedy generation by another engine."""
    if reason := found.skipped or found.unscored:
        yield ConsistencyCheck(found.name, found.description, skipped=reason)
    if found.skipped:
        return
    if not found.unscored:
        yield ConsistencyCheck(
            found.name,
            found.description,
            max_difference=found.max_difference,
            changed_responses=found.changed_choices,
            num_documents=found.num_documents,
        )
    yield ConsistencyCheck(
        f"generation {found.name}",
        f"greedy generation: {found.description}",
        changed_responses=found.changed_texts,
        num_documents=found.num_documents,
    )


def _lead(logprobs: Tensor, tokens: Sequence[int]) -> float:
    """Nats by which the least certain of greedy tokens leads the next one; negative if one is not greedy."""
    own = logprobs.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    others = logprobs.scatter(1, torch.tensor(tokens)[:, None], -torch.inf).amax(-1)
    return float((own - others).min())


def _dtype(model: PreTrainedModel) -> str:
    return str(model.dtype).removeprefix("torch.")


def _target_logprobs(tokens: Sequence[int], logprobs: Tensor) -> Tensor:
    """Log-probability of each token after the first, given those before it: [T − 1]."""
    return logprobs[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]


def format_checks(result: dict[str, Any]) -> str:
    """Text table of the result of `run_consistency_checks`."""
    width = max(20, *(len(check["name"]) + 2 for check in result["checks"]))
    lines = [f"{'check':<{width}}{'max Δ log p':>16}{'tokens changed':>18}{'responses changed':>20}"]
    for check in result["checks"]:
        if check["skipped"]:
            lines.append(f"{check['name']:<{width}}  skipped: {check['skipped']}")
            continue
        tokens = f"{check['changed_tokens']}/{check['num_tokens']}" if check["num_tokens"] else "–"
        responses = f"{check['changed_responses']}/{check['num_documents']}"
        lines.append(f"{check['name']:<{width}}{check['max_difference']:>16.2e}{tokens:>18}{responses:>20}")
    share = 100 * result["max_changed_share"]
    if share:
        lines.append(
            f"Differences between models below {share:.1f} points may be artefacts of how they are run."
        )
    elif all(check["skipped"] or check["name"].startswith("precision") for check in result["checks"]):
        lines.append("No check in the model's own precision could be run.")
    else:
        # Rule of three: with no change in n documents, the true share is below 3 / n at 95 % confidence.
        bound = 300 / result["documents"]
        lines.append(
            f"None of {result['documents']} responses changed: how the model is run accounts for at most "
            f"{bound:.1f} points of a difference between models (95 %)."
        )
    lines += ["", *format_own_paths(result["own_paths"], result["own_texts"])]
    return "\n".join(lines)
