"""From a recipe and a selector's name to a file that says which layers stay softmax, and why."""

import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evalsuite.distill.lineage import versions
from evalsuite.distill.recipe import Recipe
from evalsuite.distill.selection.catalogue import Selector, find_selector
from evalsuite.distill.selection.ground import Ground
from evalsuite.distill.selection.options import Options
from evalsuite.distill.selection.outcome import Outcome
from evalsuite.distill.selection.sets import softmax_budget
from evalsuite.distill.setup import with_mixers
from evalsuite.foundation import RunFolderError, read_json, write_json

SCHEMA = 1


def select(
    recipe: Recipe,
    selector: str,
    out: Path,
    *,
    budget: int | None = None,
    ratio: float | str | None = None,
    options: Options | None = None,
    mixer: str | None = None,
    work: Path | None = None,
    device: str | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Choose layers and write the selection (the form is `evalsuite.reports.extras.Selection`).

    The same call takes an interrupted selection up where it stopped, and returns a finished one as it is.

    Args:
        out: the JSON file.
        budget, ratio: how many layers stay softmax, one of the two.
        mixer: what the other layers become while choosing, instead of the recipe's (the probe).
        work: folder for the trunk, journals and states, shared by all selectors of a teacher; by default
            `work` beside `out`.
        device: as for `distill`.

    Raises:
        ConfigError: an unknown selector, a budget that cannot be, a teacher whose layers cannot be taken
            one by one, or options that do not fit.
        RunFolderError: `out` or `work` hold the history of another teacher or question.
    """
    find_selector(selector)
    recipe = with_mixers(recipe, None if mixer is None else [mixer])
    work = Path(work) if work is not None else Path(out).parent / "work"
    ground = Ground(recipe, options or Options(), work, device=device, quiet=quiet)
    return select_on(ground, selector, out, budget=budget, ratio=ratio)


def select_on(
    ground: Ground,
    selector: str,
    out: Path,
    *,
    budget: int | None = None,
    ratio: float | str | None = None,
) -> dict[str, Any]:
    """`select` on a ground that is there already: several selectors then load teacher and trunk once."""
    chosen, out = find_selector(selector), Path(out)
    k = softmax_budget(ground.layers, budget=budget, ratio=ratio)
    question = {
        "selector": selector,
        "budget": k,
        "recipe": ground.recipe.hash,
        "options": ground.options.model_dump(mode="json", exclude_defaults=True),
    }
    done = _finished(out, ground, question)
    # All processes look before one of them writes.
    ground.parallel.wait()
    if done is not None:
        return done
    began = time.monotonic()
    outcome: Outcome = chosen.load()(ground, k, **chosen.settings)
    value = _form(ground, chosen, outcome, question, time.monotonic() - began)
    if ground.parallel.main:
        write_json(out, value)
    ground.parallel.wait()
    return value


def _finished(out: Path, ground: Ground, question: dict[str, Any]) -> dict[str, Any] | None:
    """The selection that `out` holds already; None if there is no such file.

    Raises:
        RunFolderError: it is of another teacher, or answers another question.
    """
    if not out.exists():
        return None
    value: Any = read_json(out)
    if not isinstance(value, dict) or "selector" not in value:
        raise RunFolderError(f"{out} is not a selection; choose another --out")
    if value.get("teacher") != ground.teacher_id:
        raise RunFolderError(
            f"{out} is a selection of another teacher (weights {value.get('teacher')}, not "
            f"{ground.teacher_id}); choose another --out"
        )
    if value.get("details", {}).get("question") != question:
        raise RunFolderError(
            f"{out} holds a selection by {value['selector']} with another recipe, budget or options; "
            "choose another --out"
        )
    return value


def _form(
    ground: Ground, selector: Selector, outcome: Outcome, question: dict[str, Any], seconds: float
) -> dict[str, Any]:
    cost = outcome.cost
    history = [
        {"step": snapshot.step, "tokens": snapshot.tokens, "layers": list(snapshot.layers)}
        for snapshot in outcome.history
    ]
    value: dict[str, Any] = {
        "schema": SCHEMA,
        "selector": selector.name,
        "layers": list(outcome.layers),
        "mixer": ground.mixer if selector.needs in ("trunk", "training") else None,
        "teacher": ground.teacher_id,
        "measure": outcome.measure or "not rated",
        "scores": list(outcome.scores),
        "history": history,
        "tokens": cost.student_tokens,
        "seconds": max(seconds, cost.seconds),
        "details": {
            "question": question,
            "teacher_path": ground.recipe.teacher,
            "recipe": ground.recipe.name,
            "source": selector.source,
            "notes": list(outcome.notes),
            "cost": asdict(cost),
            "device": ground.parallel.device_name,
            "versions": versions(),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            **outcome.details,
        },
    }
    # By rounds the history counts rounds, each of which stopped by itself (see details).
    if outcome.history and selector.needs == "training" and not ground.options.iterative:
        last = outcome.history[-1]
        value["stop"] = {
            "step": last.step,
            "tokens": last.tokens,
            "planned": last.tokens + cost.planned_tokens - cost.student_tokens,
            "why": "stable" if outcome.stopped else "budget",
        }
    return value
