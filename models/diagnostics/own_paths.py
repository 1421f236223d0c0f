"""Paths of a model's own code that its users take: padding, packing, caches, batches.

Each computes what a plain forward pass of one text does, in exact arithmetic. evalsuite takes none of them
where its engines do not prove them; a trainer or a server may.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from evalsuite.models.decoder.cache import CACHE, returned_cache
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
    """

    name: str
    description: str
    known: str
    compute: Callable[[PreTrainedModel, Rows], Logprobs]


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
    return [_logprobs(row[real.bool()]) for row, real in zip(logits, mask, strict=True)]


def decoded(model: PreTrainedModel, rows: Rows, side: Side) -> Logprobs:
    """The last position, read from the cache of a padded batch; on the left, as `generate` does."""
    tokens, mask, extra = _pad(model, [row[:-1] for row in rows], side)
    output = model(input_ids=tokens, attention_mask=mask, use_cache=True, **extra)
    last = torch.tensor([[row[-1]] for row in rows], device=model.device)
    return _decode(model, output, last, mask, torch.tensor([[len(row) - 1] for row in rows]))


def chunked(model: PreTrainedModel, rows: Rows) -> Logprobs:
    """The second half of each text, read in one pass from the cache of the first."""
    found = []
    for row in rows:
        half = len(row) // 2
        ids = torch.tensor([row], device=model.device)
        cache = model(input_ids=ids[:, :half], use_cache=True)
        mask, positions = torch.ones_like(ids[:, :half]), torch.arange(half, len(row))[None]
        found += _decode(model, cache, ids[:, half:], mask, positions)
    return found


def packed(model: PreTrainedModel, rows: Rows, **extra: Tensor) -> Logprobs:
    """All positions of texts in one row, told apart by their positions, and `extra` arguments if any."""
    lengths = [len(row) for row in rows]
    positions = torch.cat([torch.arange(length) for length in lengths])[None].to(model.device)
    joined = torch.tensor([list(itertools.chain.from_iterable(rows))], device=model.device)
    logits = model(input_ids=joined, position_ids=positions, use_cache=False, **extra).logits[0]
    return [_logprobs(part) for part in logits.split(lengths)]


def repeated(model: PreTrainedModel, rows: Rows) -> Logprobs:
    """All positions of each text alone, a second time."""
    return [
        _logprobs(model(input_ids=torch.tensor([row], device=model.device), use_cache=False).logits[0])
        for row in rows
    ]


_STATES = "pads stay in the cache: in a state (transformers #48256) or in a window"
_PADS = "pads change real tokens: the model takes no mask or positions"
_LEAK = "packed texts are not isolated: states or keys leak from one to the next"
OWN_PATHS = (
    OwnPath("padded right", "one batch, padded on the right", _PADS, partial(padded, side="right")),
    OwnPath("padded left", "one batch, padded on the left", _PADS, partial(padded, side="left")),
    OwnPath(
        "right, decoded",
        "a step from the cache of a batch padded on the right",
        _STATES,
        partial(decoded, side="right"),
    ),
    OwnPath(
        "left, decoded",
        "a step from the cache of a batch padded on the left",
        _STATES,
        partial(decoded, side="left"),
    ),
    OwnPath(
        "chunked",
        "the second half from the cache of the first",
        "the cache loses a part of the text",
        chunked,
    ),
    OwnPath("packed", "texts in one row, told apart by their positions", _LEAK, packed),
    OwnPath("repeated", "the same pass a second time", "two equal runs differ", repeated),
)
PADDED_ROWS = 8
"""Texts of one batch."""


@torch.inference_mode()
def check_own_paths(model: PreTrainedModel, rows: Rows, reference: Logprobs) -> list[OwnPathResult]:
    """Compare the paths with plain forward passes.

    Args:
        model: in eval mode.
        rows: texts of at least two tokens.
        reference: log-probabilities [T, V] of each, from a pass of its own.
    """
    tolerance = rounding({"dtype": str(model.dtype).removeprefix("torch.")})
    return [_check(path, model, rows, reference, tolerance) for path in OWN_PATHS]


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
    if side == "right":
        return tokens, mask, {}
    tokens, mask = tokens.flip(1), mask.flip(1)
    return tokens, mask, {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)}


def _decode(
    model: PreTrainedModel, output: object, tokens: Tensor, mask: Tensor, positions: Tensor
) -> Logprobs:
    """Read tokens [R, T] after what the cache of `output` holds, of which `mask` [R, C] is real."""
    extra = returned_cache(output)
    if not extra:
        raise ValueError("its forward pass returns no cache")
    if not extra.keys().isdisjoint((CACHE, "past_key_values")):
        extra["position_ids"] = positions.to(model.device)
    logits = model(
        input_ids=tokens,
        attention_mask=torch.cat([mask, torch.ones_like(tokens)], 1),
        use_cache=True,
        **extra,
    ).logits
    if logits.shape[1] != tokens.shape[1]:
        raise ValueError(f"{logits.shape[1]} positions come out for {tokens.shape[1]} tokens with a cache")
    return [_logprobs(row) for row in logits]


def _logprobs(logits: Tensor) -> Tensor:
    return logits.float().log_softmax(-1).cpu()
