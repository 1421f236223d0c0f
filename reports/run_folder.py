"""The run folder: its plan, its environment, its scores, and reading it back.

`plan.yaml` is fully resolved: with it and the records, a report is rebuilt on a machine that has neither
the models nor the data.
"""

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, field_validator, model_validator

from evalsuite.foundation import DataError, RunFolderError, read_json, write_json, write_text
from evalsuite.foundation.strict import Strict, load

CATEGORIES = (
    "knowledge",
    "common_sense",
    "reasoning",
    "instruction_following",
    "recall",
    "language_modeling",
)


class ProtocolPlan(Strict):
    """How a benchmark is asked under one protocol."""

    metric: str
    """The metric that tables show; further metrics in the records go to scores.csv."""
    direction: Literal["higher", "lower"] = "higher"
    """`higher`: a fraction between 0 and 1. `lower`: negative log-likelihood in nats, a perplexity."""
    units: str | None = None
    """For `lower`: the value that counts a document's units (words, bytes); None counts each document 1."""
    shots: int = Field(default=0, ge=0)
    prompt: str = ""
    """How a prompt reaches the model under generation: `chat template`, `plain text` or `literal`."""
    sampling: str = ""
    """`Sampling.key()`; empty under log-likelihood."""
    seeds: tuple[int, ...] = (0,)

    @model_validator(mode="after")
    def _units_belong_to_perplexities(self) -> "ProtocolPlan":
        if self.units is not None and self.direction == "higher":
            raise ValueError("units belong to a metric whose direction is lower")
        return self


class BenchmarkPlan(Strict):
    """One benchmark of a run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")
    title: str
    category: Literal[
        "knowledge", "common_sense", "reasoning", "instruction_following", "recall", "language_modeling"
    ]
    licence: str = ""
    citation: str = ""
    chance: float | Literal["per_document"] | None = None
    """Score of a guesser, as a fraction; `per_document` where each record carries its own; None: unknown."""
    contexts: tuple[int, ...] = ()
    """Stated lengths of needle prompts, in tokens; empty where the benchmark has none."""
    group: str | None = None
    """Suite of which the benchmark is a part and under which the page tables it, such as `longbench`."""
    protocols: dict[Literal["loglikelihood", "generation"], ProtocolPlan] = Field(min_length=1)

    @field_validator("chance")
    @classmethod
    def _chance_is_a_fraction(cls, value: float | str | None) -> float | str | None:
        if isinstance(value, float | int) and not 0 <= value < 1:
            raise ValueError("a chance level is a fraction, at least 0 and below 1")
        return value


class CheckpointPlan(Strict):
    """One checkpoint of a run."""

    label: str = Field(min_length=1)
    weights_id: str = Field(min_length=1)
    role: Literal["teacher", "student"]
    path: str = ""
    parameters: int | None = Field(default=None, ge=0)
    lineage: dict[str, Any] = Field(default_factory=dict)
    """As `lineage.json` in the checkpoint's folder; see the house rules in `reports/lineage.py`."""


class Plan(Strict):
    """`plan.yaml`: what was asked, of whom, and all that the reports need to know about it."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    suite: str
    created: str
    """ISO 8601, UTC."""
    benchmarks: tuple[BenchmarkPlan, ...] = Field(min_length=1)
    checkpoints: tuple[CheckpointPlan, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_are_unique(self) -> "Plan":
        for what, names in (
            ("benchmark", [benchmark.name for benchmark in self.benchmarks]),
            ("weights_id", [checkpoint.weights_id for checkpoint in self.checkpoints]),
            ("label", [checkpoint.label for checkpoint in self.checkpoints]),
        ):
            repeated = sorted({name for name in names if names.count(name) > 1})
            if repeated:
                raise ValueError(f"{what} '{repeated[0]}' is listed twice")
        return self

    def cells(self) -> list[tuple[BenchmarkPlan, str]]:
        """Every benchmark under each of its protocols."""
        return [(benchmark, protocol) for benchmark in self.benchmarks for protocol in benchmark.protocols]


def write_plan(run: Path, plan: Plan) -> None:
    """Write `<run>/plan.yaml`, atomically. Raises RunFolderError if the folder cannot be written."""
    value = plan.model_dump(mode="json", by_alias=True)
    write_text(Path(run) / "plan.yaml", yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100))


def read_plan(run: Path) -> Plan:
    """Read `<run>/plan.yaml`.

    Raises:
        RunFolderError: `run` is no run folder.
        ConfigError: the plan has unknown or missing keys, or another schema.
    """
    path = Path(run) / "plan.yaml"
    if not path.is_file():
        raise RunFolderError(f"{run}: no run folder (there is no plan.yaml in it)")
    return load(path, Plan)


def write_environment(run: Path, environment: dict[str, Any]) -> None:
    """Write `<run>/environment.json`: versions, hardware, seeds, data checksums, git state."""
    write_json(Path(run) / "environment.json", environment)


def read_environment(run: Path) -> dict[str, Any]:
    """Read `<run>/environment.json`; an empty mapping if the run has none yet."""
    path = Path(run) / "environment.json"
    if not path.exists():
        return {}
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected a JSON object")
    return value
