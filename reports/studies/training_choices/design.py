"""Designs: the runs of a recipe that differ in one choice at a time.

A design names variants of its recipe by role: students, and the arms of axes. Every run is one student, at
most one arm and one seed; `base` is the run without an arm.

    study = load_study("gap-study-pocket-10m")
    for run in study_runs(study):
        load_recipe(f"{study.recipe}:{','.join(run.variants)}", [f"seed={run.seed}"])
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from evalsuite.foundation import ConfigError, nearest
from evalsuite.foundation.strict import Distinct, Seed, Strict, load

DESIGNS = Path(__file__).parent / "designs"
BASE = "base"
"""Name of the run without an arm."""
DESIGN = "study.json"
"""File below --out with the axes and runs, which the report reads."""
TEACHER = "teacher"
"""Name of the teacher among the runs."""


class Axis(Strict):
    """One choice: what the base does, and what is done instead."""

    base: str
    """What the base does, in words."""
    arms: tuple[str, ...] = Field(min_length=1)
    """Variants, each of which changes this choice alone."""
    compared_with: str = BASE
    """The arm that the others are compared with, where it is not the base."""
    students: tuple[str, ...] | None = None
    """Students that have this choice; default: all."""
    published_for: tuple[str, ...] | None = None
    """Students whose published code has the arms, where these reproduce a defect; default: all of them."""


class LayerSelection(Strict):
    """Softmax layers that are selected once, with the teacher of the study."""

    selector: str
    budget: int = Field(ge=1)
    options: list[str] = Field(default_factory=list)
    """Options of the selector, as `key=value`."""
    all_linear: str
    """Student whose base with the first seed is the all-linear student that the selector starts from."""
    students: list[str] = Field(min_length=1)
    """Students that have these layers, except in arms that set `student.softmax_layers`."""


class Study(Strict):
    """Students × arms × seeds, and the suite that evaluates them."""

    recipe: str
    """Recipe whose variants are compared: a name or a YAML file."""
    suite: str
    """Suite of both protocols on the same documents."""
    seeds: Annotated[list[Seed], Distinct] = Field(min_length=1)
    students: list[str] = Field(min_length=1)
    """Variants, one per student."""
    axes: dict[str, Axis] = Field(min_length=1)
    base_only: list[str] = Field(default_factory=list)
    """Students that are trained without arms."""
    selection: LayerSelection | None = None

    @property
    def variants(self) -> set[str]:
        """Every variant that the study names."""
        return {*self.students, *(arm for axis in self.axes.values() for arm in axis.arms)}

    @model_validator(mode="after")
    def _named_once(self) -> "Study":
        arms = [arm for axis in self.axes.values() for arm in axis.arms]
        for name in (*arms, *self.students):
            if name == BASE or (*arms, *self.students).count(name) > 1:
                raise ValueError(f"'{name}' is named twice, or is '{BASE}', the name of runs without an arm")
        lists: dict[str, Collection[str]] = {"base_only": self.base_only}
        for name, axis in self.axes.items():
            lists[f"axes.{name}.students"] = axis.students or ()
            lists[f"axes.{name}.published_for"] = axis.published_for or ()
        if self.selection is not None:
            lists["selection.students"] = self.selection.students
            lists["selection.all_linear"] = [self.selection.all_linear]
        for field, names in lists.items():
            for name in names:
                if name not in self.students:
                    raise ValueError(f"{field}: unknown student '{name}'{nearest(name, self.students)}")
        for name, axis in self.axes.items():
            if axis.compared_with not in (BASE, *axis.arms):
                raise ValueError(f"axes.{name}.compared_with: '{axis.compared_with}' is none of its arms")
        return self


def load_study(name: str) -> Study:
    """Return the study of a design in `designs/`, or in any YAML file.

    Raises:
        ConfigError: unknown design, recipe or variant.
    """
    from evalsuite.distill import load_recipe

    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = DESIGNS / f"{name}.yaml"
        if not path.is_file():
            known = sorted(each.stem for each in DESIGNS.glob("*.yaml"))
            raise ConfigError(f"unknown study '{name}'{nearest(name, known)}")
    study = load(path, Study)
    variants = load_recipe(study.recipe).variants
    for variant in sorted(study.variants):
        if variant not in variants:
            raise ConfigError(
                f"{path}: recipe {study.recipe} has no variant '{variant}'{nearest(variant, variants)}"
            )
    return study


@dataclass(frozen=True, slots=True)
class StudyRun:
    """One training run of a study."""

    student: str
    arm: str
    """`BASE`, or a variant."""
    seed: int

    @property
    def name(self) -> str:
        """Folder of its student, and label of its scores."""
        return f"{self.student}-{self.arm}-seed{self.seed}"

    @property
    def variants(self) -> tuple[str, ...]:
        """Variants of the recipe."""
        return (self.student,) if self.arm == BASE else (self.student, self.arm)


def study_runs(study: Study) -> list[StudyRun]:
    """Return all runs in their order: the base of every seed, then one seed's arms after the other."""
    base = [StudyRun(student, BASE, seed) for seed in study.seeds for student in study.students]
    return base + [run for seed in study.seeds for run in _arms(study, seed)]


def _arms(study: Study, seed: int) -> Iterator[StudyRun]:
    for axis in study.axes.values():
        for arm in axis.arms:
            for student in study.students:
                if student not in study.base_only and student in (axis.students or study.students):
                    yield StudyRun(student, arm, seed)
