"""Runs a selector on a recipe and writes the selection file."""

import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evalsuite.distill.recipe import Recipe
from evalsuite.distill.selection.context import SelectionContext
from evalsuite.distill.selection.layer_sets import softmax_budget
from evalsuite.distill.selection.result import SelectionResult
from evalsuite.distill.selection.selector import Selector, load_selector
from evalsuite.distill.training.builders import override_mixers
from evalsuite.distill.training.provenance import package_versions
from evalsuite.foundation import ConfigError, RunFolderError, read_json, write_json

SCHEMA = 2


def select(
    recipe: Recipe,
    selector: Selector | str,
    out: Path,
    *,
    budget: int | None = None,
    ratio: float | str | None = None,
    mixer: str | None = None,
    work: Path | None = None,
    device: str | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Select layers and write the selection file (`evalsuite.reports.records.sidecars.Selection`).

    The same call resumes an interrupted selection, and returns a finished one unchanged.

    Args:
        selector: with its options, or the name of one with the defaults.
        out: the JSON file.
        budget, ratio: number or share of softmax layers, or heads; exactly one of the two.
        mixer: mixer of the other layers during the search, instead of the recipe's.
        work: folder for the all-linear student, progress logs and states, shared by all selectors of a
            teacher; defaults to `work` in the folder of `out`.
        device: as for `distill`.

    Raises:
        ConfigError: an unknown selector, an impossible budget, an unsupported teacher, or invalid options.
        RunFolderError: `out` or `work` belong to another teacher or other settings.
    """
    selector = load_selector(selector) if isinstance(selector, str) else selector
    recipe = override_mixers(recipe, None if mixer is None else [mixer])
    work = Path(work) if work is not None else Path(out).parent / "work"
    context = SelectionContext(recipe, selector, work, device=device, quiet=quiet)
    return select_on(context, selector, out, budget=budget, ratio=ratio)


def select_on(
    context: SelectionContext,
    selector: Selector,
    out: Path,
    *,
    budget: int | None = None,
    ratio: float | str | None = None,
) -> dict[str, Any]:
    """`select` with an existing context, so that several selectors load the models once."""
    out = Path(out)
    count = context.layers * (context.heads if selector.unit == "head" else 1)
    k = softmax_budget(count, budget=budget, ratio=ratio, unit=selector.unit)
    request = {
        "selector": selector.name,
        "budget": k,
        "recipe": context.recipe.hash,
        "options": selector.model_dump(mode="json", exclude_defaults=True),
    }
    done = _finished(out, context, request)
    # All processes check before one of them writes.
    context.process_group.barrier()
    if done is not None:
        return done
    began = time.monotonic()
    result = selector.select(context, k)
    if not (result.layers or result.heads):
        raise ConfigError(f"selector {selector.name} selected nothing of {k} {selector.unit}s")
    value = _encode(context, selector, result, request, time.monotonic() - began)
    if context.process_group.is_main:
        write_json(out, value)
    context.process_group.barrier()
    return value


def _finished(out: Path, context: SelectionContext, request: dict[str, Any]) -> dict[str, Any] | None:
    """Return the selection in `out`; None if there is no such file.

    Raises:
        RunFolderError: it belongs to another teacher or other settings.
    """
    if not out.exists():
        return None
    value: Any = read_json(out)
    if not isinstance(value, dict) or "selector" not in value:
        raise RunFolderError(f"{out} is not a selection; choose another --out")
    if value.get("schema") != SCHEMA:
        raise RunFolderError(
            f"{out} has selection schema {value.get('schema')}, not {SCHEMA}; delete it and select again"
        )
    if value.get("teacher") != context.info.weights_id:
        raise RunFolderError(
            f"{out} is a selection of another teacher (weights {value.get('teacher')}, not "
            f"{context.info.weights_id}); choose another --out"
        )
    if value.get("details", {}).get("request") != request:
        raise RunFolderError(
            f"{out} holds a selection by {value['selector']} with another recipe, budget or options; "
            "choose another --out"
        )
    return value


def _encode(
    context: SelectionContext,
    selector: Selector,
    result: SelectionResult,
    request: dict[str, Any],
    seconds: float,
) -> dict[str, Any]:
    cost = result.cost
    history = [
        {"step": snapshot.step, "tokens": snapshot.tokens, "layers": list(snapshot.layers)}
        for snapshot in result.history
    ]
    value: dict[str, Any] = {
        "schema": SCHEMA,
        "selector": request["selector"],
        "layers": list(result.layers),
        "mixer": context.mixer if selector.requires in ("all_linear", "training") else None,
        "teacher": context.info.weights_id,
        "measure": result.measure or "not scored",
        "scores": list(result.scores),
        "history": history,
        "tokens": cost.student_tokens,
        "seconds": max(seconds, cost.seconds),
        "details": {
            "request": request,
            "teacher_path": context.recipe.teacher,
            "recipe": context.recipe.name,
            "source": selector.source,
            "notes": list(result.notes),
            "cost": asdict(cost),
            "device": context.process_group.device_name,
            "versions": package_versions(),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            **result.details,
        },
    }
    if result.head_scores:
        value["heads"] = {str(layer): list(heads) for layer, heads in result.heads.items()}
        value["head_scores"] = [list(scores) for scores in result.head_scores]
    if result.history and result.stopped_early is not None:
        last = result.history[-1]
        value["stop"] = {
            "step": last.step,
            "tokens": last.tokens,
            "planned": last.tokens + cost.tokens_without_early_stop - cost.student_tokens,
            "reason": "stable" if result.stopped_early else "budget",
        }
    return value
