"""Families of students by training tokens or teacher size: who is one curve, and who is left out of it.

A *run* is one training run whose checkpoints grow; only those of its last stage are comparable. *Budgets* are
finished runs of one recipe that differ in nothing but the budgets of their schedules (variants `tokens-…`). A
family by *size* has one student of a recipe, mixer and seed for each teacher, also of its variants `360m`. A
recipe's name is trusted only where one recipe has it: recipes that share a name can differ in more than
budget or teacher.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from evalsuite.reports.analysis.lineage import Lineage, lineage_of
from evalsuite.reports.analysis.result_tensor import ResultTensor

Quantity = Literal["tokens", "size"]
SAME = 1.01
"""Quantities within this factor are one: budgets that only the rounding to whole batches tells apart."""
_BUDGET = re.compile(r"(?<![^-])tokens-[^-]+-?")
"""The budget in the variants of a recipe's name, `tokens-8m-short` or `short-tokens-8m`."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([mb])")
_UNITS = {"m": 1e6, "b": 1e9}
NEAR = 1.25
"""A variant's number within this factor of the teacher's parameters is its size, not a budget of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Students of one curve, by growing quantity; two or more."""

    quantity: Quantity
    kind: Literal["run", "budgets", "size"]
    checkpoints: tuple[int, ...]
    values: tuple[float, ...]
    """Training tokens, or parameters of the teacher; no two within the factor `SAME`."""
    curve: int
    """Families of one number are runs of one recipe, equal in all but their seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Students that a family leaves out."""

    quantity: Quantity
    checkpoints: tuple[int, ...]
    why: str


_Member = tuple[float, int]
"""A quantity and a student."""


def families_of(tensor: ResultTensor) -> tuple[list[Family], list[LeftOut]]:
    """All families of two students or more, and the students that they leave out."""
    groups: dict[tuple[object, ...], list[_Member]] = {}
    for i, checkpoint in enumerate(tensor.checkpoints):
        if checkpoint.teacher is None:
            continue
        lineage = lineage_of(checkpoint)
        for key in _token_keys(lineage):
            groups.setdefault(("tokens", checkpoint.teacher, *key), []).append((lineage.tokens or 0, i))
        size = tensor.checkpoints[checkpoint.teacher].parameters
        if size and lineage.complete and lineage.mixers:
            key = (
                "size",
                None,
                "size",
                _without_size(lineage.recipe, size),
                lineage.describe_mixers(),
                lineage.seed,
            )
            groups.setdefault(key, []).append((size, i))
    families, left = [], {}
    curves: dict[object, list[int | None]] = {}
    for key, members in groups.items():
        if key[0] == "size" and len({size for size, _ in members}) < 2:
            continue  # Students of one teacher are no curve by its size.
        quantity: Quantity = "tokens" if key[0] == "tokens" else "size"
        kind = key[2]
        assert kind in ("run", "budgets", "size")
        lineages = {i: lineage_of(tensor.checkpoints[i]) for _, i in members}
        kept, out = _selected(kind, members, lineages, tensor)
        for why, who in out.items():
            left[quantity, tuple(who), why] = LeftOut(quantity=quantity, checkpoints=tuple(who), why=why)
        if len(kept) > 1:
            values, checkpoints = zip(*kept, strict=True)
            curve = (kind, values, *(_apart_from_seed(i, lineages[i], tensor) for i in checkpoints))
            seed = lineages[checkpoints[0]].seed
            if seed is None or seed in curves.get(curve, ()):
                curve = (*curve, checkpoints)
            curves.setdefault(curve, []).append(seed)
            families.append(
                Family(
                    quantity=quantity,
                    kind=kind,
                    checkpoints=checkpoints,
                    values=values,
                    curve=list(curves).index(curve),
                )
            )
    return families, list(left.values())


def curves_of(families: Sequence[Family]) -> list[list[Family]]:
    """The families of each curve."""
    found: dict[int, list[Family]] = {}
    for family in families:
        found.setdefault(family.curve, []).append(family)
    return list(found.values())


def _apart_from_seed(checkpoint: int, lineage: Lineage, tensor: ResultTensor) -> tuple[object, ...]:
    """What runs of one recipe share; not its hash, of which the seed is a part."""
    stages = tuple(stage.settings for stage in lineage.stages)
    name = lineage.recipe or lineage.recipe_hash or checkpoint
    return tensor.checkpoints[checkpoint].teacher, name, lineage.layers, stages


def _token_keys(lineage: Lineage) -> list[tuple[object, ...]]:
    """The families by training tokens that a student may belong to."""
    if not lineage.tokens:
        return []
    found: list[tuple[object, ...]] = [
        ("run", lineage.recipe, lineage.recipe_hash, lineage.layers, lineage.seed)
    ]
    if lineage.complete and lineage.recipe:
        base, _, variants = lineage.recipe.partition(".")
        others = _BUDGET.sub("", variants).rstrip("-")
        found.append(("budgets", base, others, lineage.layers, lineage.seed))
    return found


def _without_size(recipe: str | None, parameters: int) -> str | None:
    """The name of a recipe without variants that say the size of this teacher: `r.360m-short` of 362M."""
    if recipe is None:
        return None
    base, _, variants = recipe.partition(".")
    others = [each for each in variants.split("-") if not _is_size(each, parameters)]
    return f"{base}.{'-'.join(others)}".rstrip(".")


def _is_size(variant: str, parameters: int) -> bool:
    found = _SIZE.fullmatch(variant)
    return found is not None and 1 / NEAR < float(found[1]) * _UNITS[found[2]] / parameters < NEAR


def _selected(
    kind: str, members: Sequence[_Member], lineages: dict[int, Lineage], tensor: ResultTensor
) -> tuple[list[_Member], dict[str, list[int]]]:
    """The members of a family by growing quantity, and who is left out, by reason."""
    out: dict[str, list[int]] = {}
    kept = sorted(members, key=lambda member: member[0])
    if kind == "run":
        last = _last_stage(lineages[kept[-1][1]])
        earlier = [i for _, i in kept if _last_stage(lineages[i]) != last]
        if earlier:
            out[f"their last stage is not '{last}'"] = earlier
    else:
        for group in _one_name_for_several(kind, kept, lineages):
            names = " and ".join(sorted({f"'{lineages[i].recipe}'" for i in group}))
            out[
                f"{names} is the name of several recipes here, which may differ in more than "
                f"{'their budgets' if kind == 'budgets' else 'their teachers'}; give each variant a name"
            ] = group
    gone = {i for who in out.values() for i in who}
    found: list[_Member] = []
    for value, i in kept:
        if i in gone:
            continue
        if found and value <= SAME * found[-1][0]:
            other = tensor.checkpoints[found[-1][1]].label
            what = "size of teacher" if kind == "size" else "number of tokens"
            out.setdefault(f"'{other}' has the same {what}, but for rounding", []).append(i)
        else:
            found.append((value, i))
    return found, out


def _last_stage(lineage: Lineage) -> str:
    return lineage.stages[-1].name if lineage.stages else ""


def _one_name_for_several(
    kind: str, members: Sequence[_Member], lineages: dict[int, Lineage]
) -> list[list[int]]:
    """Groups of students whose recipes have one name, but not one hash: of one budget's name, or of one size.

    Recipes for teachers of several sizes have several hashes, as the teacher is a part of them. Where one
    size has two recipes, nothing tells which of them the other sizes continue.
    """
    groups: dict[object, list[int]] = {}
    for value, i in members:
        groups.setdefault(value if kind == "size" else lineages[i].recipe, []).append(i)
    mixed = [group for group in groups.values() if len({lineages[i].recipe_hash for i in group}) > 1]
    return [[i for _, i in members]] if mixed and kind == "size" else mixed
