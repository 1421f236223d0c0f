"""Paths of a model's own code that its users take: padding, packing, caches, batches.

Each computes what a plain forward pass of one text does, in exact arithmetic. evalsuite takes none of them
where its engines do not prove them; a trainer or a server may.
"""

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from evalsuite.models.decoder.cache import CACHE, cached_tensors, returned_cache
from evalsuite.models.inference.batching import pad_right
from evalsuite.models.inference.settling import rounding

Rows = Sequence[tuple[int, ...]]
Side = Literal["right", "left"]
Logprobs = list[Tensor]
"""Log-probabilities [n, V] after the last n tokens of each text; n is the path's own."""


@dataclass(frozen=True, slots=True)
class OwnPath:
    """One way to compute the log-probabilities of several texts.

    Args:
        name: short name; description: how it differs from a plain forward pass.
        known: public defects of this kind.
        compute: the model and texts of at least two tokens → log-probabilities.
        parts: earlier paths that this one contains, whose defects it has, too.
        cached: whether it reads from a cache.
    """

    name: str
    description: str
    known: str
    compute: Callable[[PreTrainedModel, Rows], Logprobs]
    parts: tuple[str, ...] = ()
    cached: bool = False


@dataclass(frozen=True, slots=True)
class OwnPathResult:
    """How a path differs from plain forward passes.

    Args:
        name, description: of the path.
        max_difference: largest difference of the log-probability of a most likely token, in nats.
        changed_tokens: most likely tokens that change; num_tokens: number of them.
        finding: what the difference is known as; empty if it is rounding.
        skipped: why it was not run, or None.
    """

    name: str
    description: str
    max_difference: float = 0.0
    changed_tokens: int = 0
    num_tokens: int = 0
    finding: str = ""
    skipped: str | None = None


def padded(model: PreTrainedModel, rows: Rows, side: Side) -> Logprobs:
    """All positions of texts in one padded batch, with a mask; on the left, with positions too."""
    tokens, mask, extra = _pad(model, rows, side)
    logits = model(input_ids=tokens, attention_mask=mask, use_cache=False, **extra).logits
    return [logprobs(row[real.bool()]) for row, real in zip(logits, mask, strict=True)]


def decoded(model: PreTrainedModel, rows: Rows, side: Side) -> Logprobs:
    """The last position, read from the cache of a padded batch."""
    tokens, mask, extra = _pad(model, [row[:-1] for row in rows], side)
    cache = _returned_cache(model(input_ids=tokens, attention_mask=mask, use_cache=True, **extra))
    return [logprobs(row) for row in _last_step(model, rows, cache, mask)]


def batched_steps(model: PreTrainedModel, rows: Rows) -> Logprobs:
    """The last position of each text, read from the cache of a batch of texts of its length."""
    found = []
    for row in rows:
        batch = _same_length(row)
        tokens = torch.tensor(batch, device=model.device)[:, :-1]
        cache = _returned_cache(model(input_ids=tokens, use_cache=True))
        found.append(logprobs(_last_step(model, batch, cache, torch.ones_like(tokens))[1]))
    return found


def filled(model: PreTrainedModel, rows: Rows) -> Logprobs:
    """All positions of each text alone, in a pass that fills a cache."""
    return [_read(model, torch.tensor([row], device=model.device))[0] for row in rows]


def chunked(model: PreTrainedModel, rows: Rows) -> Logprobs:
    """All positions of each text, read in chunks of a third."""
    return [
        _read_parts(model, [part for part in torch.tensor([row]).tensor_split(3, 1) if part.numel()])
        for row in rows
    ]


def stepped(model: PreTrainedModel, rows: Rows) -> Logprobs:
    """The last tokens of each text, read one at a time."""
    found = []
    for row in rows:
        steps = min(STEPS, len(row) - 1)
        ids = torch.tensor([row], device=model.device)
        found.append(_read_parts(model, ids.split([len(row) - steps, *[1] * steps], 1))[-steps:])
    return found


def continued(model: PreTrainedModel, rows: Rows, copied: bool) -> Logprobs:
    """The second half of each text, after another text with the same first half was read.

    Its cache is a copy of the first half's that was made before, or that of the first half read again.
    """
    found = []
    for row in rows:
        ids = torch.tensor([row], device=model.device)
        first, second = ids.tensor_split([len(row) // 2], 1)
        _, cache = _read(model, first)
        spare = copy.deepcopy(cache) if copied else None
        _read(model, first.flip(1), cache, first.shape[1])
        found.append(_read(model, second, spare or _read(model, first)[1], first.shape[1])[0])
    return found


def packed(model: PreTrainedModel, rows: Rows, bounds: bool = False, **extra: Any) -> Logprobs:
    """All positions of texts in one row, told apart by their positions, and `extra` arguments if any.

    With `bounds`, also by what transformers' collators add for flash attention and recurrent layers.
    """
    lengths = [len(row) for row in rows]
    positions = torch.cat([torch.arange(length) for length in lengths])[None].to(model.device)
    joined = torch.tensor([list(itertools.chain.from_iterable(rows))], device=model.device)
    if bounds:
        ends = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=model.device)
        index = torch.arange(len(rows)).repeat_interleave(torch.tensor(lengths))[None]
        extra |= {f"cu_seq_lens_{which}": ends for which in "qk"}
        extra |= {f"max_length_{which}": max(lengths) for which in "qk"}
        extra["seq_idx"] = index.int().to(model.device)
    logits = model(input_ids=joined, position_ids=positions, use_cache=False, **extra).logits[0]
    return [logprobs(part) for part in logits.split(lengths)]


def repeated(model: PreTrainedModel, rows: Rows) -> Logprobs:
    """All positions of each text alone, a second time."""
    return [
        logprobs(model(input_ids=torch.tensor([row], device=model.device), use_cache=False).logits[0])
        for row in rows
    ]


def reordered(model: PreTrainedModel, rows: Rows) -> Logprobs:
    """All positions of each text alone, the last text first."""
    return repeated(model, rows[::-1])[::-1]


def batched(model: PreTrainedModel, rows: Rows) -> Logprobs:
    """All positions of each text, in the middle of a batch of texts of its length."""
    found = []
    for row in rows:
        batch = torch.tensor(_same_length(row), device=model.device)
        found.append(logprobs(model(input_ids=batch, use_cache=False).logits[1]))
    return found


STEPS = 8
"""Tokens that are read one at a time, at most."""
_STATES = "pads stay in the cache: in a state (transformers #48256) or in a window"
_PADS = "pads change real tokens: mask or positions are ignored (as in transformers #33095)"
_LEAK = (
    "packed texts are not isolated: states or keys leak from one to the next "
    "(transformers #44836, Automodel #2131)"
)
_PREFIX = "(vLLM #53912, LMCache #2863)"
_DECODED = ("stepped", "batched steps")
OWN_PATHS = (
    OwnPath("repeated", "the same pass a second time", "two equal runs differ", repeated),
    OwnPath(
        "reordered",
        "each text alone, the last first",
        "a text depends on the texts before it: a state outlives its request",
        reordered,
        ("repeated",),
    ),
    OwnPath(
        "batched",
        "each text in a batch of texts of its length",
        "rows of a batch change each other",
        batched,
        ("repeated",),
    ),
    OwnPath(
        "padded right", "one batch, padded on the right", _PADS, partial(padded, side="right"), ("batched",)
    ),
    OwnPath(
        "padded left", "one batch, padded on the left", _PADS, partial(padded, side="left"), ("batched",)
    ),
    OwnPath(
        "filled",
        "each text alone, in a pass that fills a cache",
        "a cache starts with the state of an earlier request (as in tpu-inference #3412)",
        filled,
        ("repeated", "reordered"),
        cached=True,
    ),
    OwnPath(
        "chunked",
        "chunks of a third, each from the cache of those before",
        "the cache loses a part of the text",
        chunked,
        ("filled",),
        cached=True,
    ),
    OwnPath(
        "stepped",
        "the last tokens one at a time from the cache",
        "steps from the cache differ in position, state or precision (as in vLLM #55196)",
        stepped,
        ("filled",),
        cached=True,
    ),
    OwnPath(
        "forked",
        "the second half from a copy of the cache of the first",
        f"a state is held outside the cache, or copies of a cache share it {_PREFIX}",
        partial(continued, copied=True),
        ("chunked",),
        cached=True,
    ),
    OwnPath(
        "warm",
        "the second half from the cache of the first, which was read and continued before",
        f"a reused prefix is stale: its cache holds what came after it {_PREFIX}",
        partial(continued, copied=False),
        ("chunked",),
        cached=True,
    ),
    OwnPath(
        "batched steps",
        "a step from the cache of a batch of texts of one length",
        "rows of a batch change or exchange their states",
        batched_steps,
        ("batched", "stepped"),
        cached=True,
    ),
    OwnPath(
        "right, decoded",
        "a step from the cache of a batch padded on the right",
        _STATES,
        partial(decoded, side="right"),
        _DECODED,
        cached=True,
    ),
    OwnPath(
        "left, decoded",
        "a step from the cache of a batch padded on the left",
        _STATES,
        partial(decoded, side="left"),
        _DECODED,
        cached=True,
    ),
    OwnPath("packed", "texts in one row, told apart by their positions", _LEAK, packed, ("repeated",)),
    OwnPath(
        "packed, bounds",
        "texts in one row, told apart by cu_seq_lens and seq_idx, too",
        _LEAK,
        partial(packed, bounds=True),
        ("repeated",),
    ),
)
PADDED_ROWS = 8
"""Texts of one batch."""
EXPLAINED = 10
"""A path's difference can be that of its parts if it is less than so many times as large."""


@torch.inference_mode()
def check_own_paths(model: PreTrainedModel, rows: Rows, reference: Logprobs) -> list[OwnPathResult]:
    """Compare the paths with plain forward passes.

    Args:
        model: in eval mode.
        rows: texts of at least two tokens.
        reference: log-probabilities [T, V] of each, from a pass of its own.
    """
    tolerance = rounding({"dtype": str(model.dtype).removeprefix("torch.")})
    results: dict[str, OwnPathResult] = {}
    for path in OWN_PATHS:
        result = _check(path, model, rows, reference, tolerance)
        if result.finding and path.cached and (narrow := _narrow_dtypes(model, rows[0])):
            result = replace(result, finding=f"{result.finding}; its cache is in {narrow}")
        parts = [
            name
            for name in path.parts
            if results[name].finding and result.max_difference < EXPLAINED * results[name].max_difference
        ]
        if result.finding and parts:
            result = replace(result, finding=f"{result.finding}; {' and '.join(parts)} may explain it")
        results[path.name] = result
    return list(results.values())


def format_own_paths(paths: Sequence[Mapping[str, Any]], texts: int) -> list[str]:
    """Lines of a text table of the fields of `OwnPathResult`, on so many texts."""
    lines = [f"{'own path':<20}{'max Δ log p':>16}{'tokens changed':>18}"]
    for path in paths:
        if path["skipped"]:
            lines.append(f"{path['name']:<20}  skipped: {path['skipped']}")
            continue
        tokens = f"{path['changed_tokens']}/{path['num_tokens']}"
        lines.append(
            f"{path['name']:<20}{path['max_difference']:>16.2e}{tokens:>18}  {path['finding']}".rstrip()
        )
    if any(path["finding"] for path in paths):
        lines.append(
            "These paths of the model's own code change its results for trainers and servers that take them; "
            "evalsuite scores it without them."
        )
    elif texts:
        # Rule of three: with no difference in n texts, the true share is below 3 / n at 95 % confidence.
        lines.append(
            f"No path differs in {texts} texts beyond rounding: a path that changes more than "
            f"{min(100.0, 300 / texts):.0f} % of texts would have been seen (95 %)."
        )
    return lines


def _check(
    path: OwnPath, model: PreTrainedModel, rows: Rows, reference: Logprobs, tolerance: float
) -> OwnPathResult:
    largest, changed, compared = 0.0, 0, 0
    for start in range(0, len(rows), PADDED_ROWS):
        batch = slice(start, start + PADDED_ROWS)
        try:
            found = path.compute(model, rows[batch])
        except Exception as error:  # Foreign code may refuse a path in any way.
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            return OwnPathResult(path.name, path.description, skipped=f"{type(model).__name__}: {text}")
        for own, whole in zip(found, reference[batch], strict=True):
            expected = whole[-len(own) :]
            best = expected.argmax(-1, keepdim=True)
            if not bool(own.isfinite().all()):
                finding = "its log-probabilities are not finite"
                return OwnPathResult(path.name, path.description, finding=finding)
            difference = (own.gather(1, best) - expected.gather(1, best)).abs().max()
            largest = max(largest, float(difference))
            changed += int((own.argmax(-1) != best[:, 0]).sum())
            compared += len(own)
    finding = path.known if largest > tolerance else ""
    return OwnPathResult(path.name, path.description, largest, changed, compared, finding)


def _pad(model: PreTrainedModel, rows: Rows, side: Side) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Tokens and mask [R, T], and the positions that padding on the left needs."""
    order = slice(None, None, 1 if side == "right" else -1)
    tokens, lengths = pad_right([row[order] for row in rows], model.device)
    mask = (torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]).long()
    # The embedding of a pad token is often zero, which would leave no trace where a mask is ignored.
    tokens = tokens.where(mask.bool(), tokens[:, :1])
    if side == "right":
        return tokens, mask, {}
    tokens, mask = tokens.flip(1), mask.flip(1)
    return tokens, mask, {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)}


def _last_step(model: PreTrainedModel, rows: Rows, cache: dict[str, Any], mask: Tensor) -> Tensor:
    """Logits [R, 1, V] after the last tokens, as `generate` reads them after what `mask` [R, T] covers."""
    last = torch.tensor([[row[-1]] for row in rows], device=model.device)
    # Models without keys take no mask after the first pass.
    prepare: Any = model.prepare_inputs_for_generation
    inputs = prepare(
        last,
        attention_mask=torch.cat([mask, torch.ones_like(last)], 1),
        is_first_iteration=False,
        use_cache=True,
        **_positions(cache, torch.tensor([[len(row) - 1] for row in rows], device=model.device)),
        **cache,
    )
    return _checked(model(**inputs).logits, last)


def _read(
    model: PreTrainedModel, tokens: Tensor, cache: dict[str, Any] | None = None, length: int = 0
) -> tuple[Tensor, dict[str, Any]]:
    """Log-probabilities after tokens [1, T] that follow the `length` tokens in a cache, and the new cache."""
    cache = cache or {}
    positions = torch.arange(length, length + tokens.shape[1], device=model.device)[None]
    output = model(input_ids=tokens, use_cache=True, **_positions(cache, positions), **cache)
    return logprobs(_checked(output.logits, tokens)[0]), _returned_cache(output)


def _read_parts(model: PreTrainedModel, parts: Sequence[Tensor]) -> Tensor:
    """Log-probabilities of a text in parts [1, T], each of which is read from the cache of those before."""
    found: list[Tensor] = []
    cache: dict[str, Any] = {}
    length = 0
    for part in parts:
        logprobs, cache = _read(model, part.to(model.device), cache, length)
        found.append(logprobs)
        length += part.shape[1]
    return torch.cat(found)


def _positions(cache: Mapping[str, Any], positions: Tensor) -> dict[str, Tensor]:
    """Positions of tokens after a cache, for models that take any."""
    return {} if cache.keys().isdisjoint((CACHE, "past_key_values")) else {"position_ids": positions}


def _returned_cache(output: object) -> dict[str, Any]:
    cache = returned_cache(output)
    if not cache:
        raise ValueError("its forward pass returns no cache")
    return cache


def _same_length(row: tuple[int, ...]) -> list[tuple[int, ...]]:
    """A batch of texts of one length with this one in the middle."""
    return [row[::-1], row, row[1:] + row[:1]]


def _checked(logits: Tensor, tokens: Tensor) -> Tensor:
    if logits.shape[1] != tokens.shape[1]:
        raise ValueError(f"{logits.shape[1]} positions come out for {tokens.shape[1]} tokens with a cache")
    return logits


def _narrow_dtypes(model: PreTrainedModel, row: tuple[int, ...]) -> str:
    """The dtypes in the cache of a text that have fewer bits than the model's; empty if there are none."""
    _, cache = _read(model, torch.tensor([row], device=model.device))
    dtypes = {tensor.dtype for tensor in cached_tensors(cache) if tensor.is_floating_point()}
    narrow = {dtype for dtype in dtypes if dtype.itemsize < model.dtype.itemsize}
    return " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in narrow))


def logprobs(logits: Tensor) -> Tensor:
    """Log-probabilities of logits, in float32 on the CPU."""
    return logits.float().log_softmax(-1).cpu()
