"""The run folder: reading and writing its plan and its environment.

`plan.yaml` is fully resolved: together with the score rows it suffices to rebuild a report on a machine that
has neither the models nor the data.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, field_validator, model_validator

from evalsuite.foundation import ConfigError, DataError, RunFolderError, read_json, write_json, write_text
from evalsuite.foundation.context_limits import ContextLimit
from evalsuite.foundation.strict import Distinct, Strict, parse
from evalsuite.foundation.strict_yaml import read_yaml
from evalsuite.foundation.taxonomy import Category, Protocol, RecallNumber
from evalsuite.reports.records.names import same_path

SCHEMA = 3


class ProtocolPlan(Strict):
    """Settings of a benchmark under one protocol."""

    metric: str
    """The metric that tables show; further metrics of the score rows go to the score table."""
    documents: int | dict[int, int]
    """Number of documents: one number, or one per context. A cell with fewer is incomplete."""
    direction: Literal["higher", "lower"] = "higher"
    """`higher`: a fraction between 0 and 1. `lower`: negative log-likelihood in nats, a perplexity."""
    units: str | None = None
    """For `lower`: the value that counts the units of a document (words, bytes); None: one per document."""
    num_fewshot: int = Field(default=0, ge=0)
    prompt: str = ""
    """Prompt format under generation: `chat template`, `plain text` or `literal`."""
    chat_template_kwargs: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Further arguments of the chat template, such as ``enable_thinking: false``."""
    reasoning: Literal["strip", "keep"] = "strip"
    """Under generation: whether only what follows a block of reasoning is scored, or whole responses."""
    sampling: str = ""
    """`Sampling.key()`; empty under log-likelihood."""
    seeds: Annotated[tuple[int, ...], Distinct] = Field(default=(0,), min_length=1)

    @property
    def contexts(self) -> tuple[int | None, ...]:
        """The planned contexts; (None,) for a benchmark without contexts."""
        return tuple(self.documents) if isinstance(self.documents, dict) else (None,)

    def planned(self, context: int | None) -> int:
        """Return the number of documents at a context; 0 if the plan does not have the context."""
        if isinstance(self.documents, dict):
            return 0 if context is None else self.documents.get(context, 0)
        return self.documents if context is None else 0

    @field_validator("documents")
    @classmethod
    def _documents_are_counted(cls, value: int | dict[int, int]) -> int | dict[int, int]:
        counts = value.values() if isinstance(value, dict) else [value]
        if not counts or min(counts) < 1:
            raise ValueError("a plan has at least one document per benchmark and context")
        return value

    @model_validator(mode="after")
    def _units_belong_to_perplexities(self) -> "ProtocolPlan":
        if self.units is not None and self.direction == "higher":
            raise ValueError("units belong to a metric whose direction is lower")
        return self


class HubDataset(Strict):
    """The data of a benchmark on the Hugging Face Hub."""

    id: str
    """`organization/name`"""
    config: str | None = None
    """None: the only config, or several."""
    split: str


class BenchmarkPlan(Strict):
    """One benchmark of a plan."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")
    title: str
    category: Category
    license: str = ""
    citation: str = ""
    chance: float | Literal["per_document"] | None = None
    """Score of guessing, as a fraction; `per_document`: each score row has its own; None: unknown."""
    contexts: tuple[int, ...] = ()
    """Stated lengths of needle prompts in tokens; empty if the benchmark has none."""
    group: str | None = None
    """Group of benchmarks that averages count as one and the page shows as one table, such as `longbench`."""
    recall: dict[str, RecallNumber] = Field(default_factory=dict)
    """Recall numbers that count it, by name."""
    group_weight: float | None = Field(default=None, gt=0)
    """Weight in the average of its group; None: each benchmark of it weighs the same."""
    cluster_column: str | None = None
    """Column of the data whose equal values mark documents that are resampled together: every score row
    names its cluster. None: documents are independent."""
    dataset: HubDataset | None = None
    """Where its documents come from; None: generated, of several datasets, or not stated."""
    not_leading: str = ""
    """Why it counts in no average that ranks; empty if it does."""
    protocols: dict[Protocol, ProtocolPlan] = Field(min_length=1)

    @field_validator("chance")
    @classmethod
    def _chance_is_a_fraction(cls, value: float | str | None) -> float | str | None:
        if isinstance(value, float | int) and not 0 <= value < 1:
            raise ValueError("a chance level is a fraction, at least 0 and below 1")
        return value

    @model_validator(mode="after")
    def _counts_match_contexts(self) -> "BenchmarkPlan":
        for name, protocol in self.protocols.items():
            unknown = sorted(set(protocol.contexts) - set(self.contexts or (None,)), key=str)
            if unknown:
                raise ValueError(
                    f"'documents' of {name} counts context {unknown[0]}, 'contexts' is {list(self.contexts)}"
                )
        return self


class CheckpointPlan(Strict):
    """One checkpoint of a plan."""

    label: str = Field(min_length=1)
    weights_id: str = Field(min_length=1)
    role: Literal["teacher", "student"]
    path: str = ""
    parameters: int | None = Field(default=None, ge=0)
    positions: int | None = Field(default=None, ge=1)
    """Positions that its config states; longer texts are not read, or out of distribution. None: unknown."""
    lineage: dict[str, Any] = Field(default_factory=dict)
    """Content of `lineage.json` in the checkpoint's folder; see `evalsuite.reports.analysis.lineage`."""
    fingerprints: tuple[str, ...] = ()
    """Of published samples: those of its score rows, where the same weights are several checkpoints, or where
    several were declared one. Empty: all score rows of the weights."""
    compared_with: str = ""
    """Of published samples: label of its teacher, where the teacher's weights are several checkpoints."""


class DivergedStudent(Strict):
    """A student that diverged in training, and therefore has no checkpoint and no scores."""

    label: str = Field(min_length=1)
    path: str = ""
    """Folder that its checkpoint would be in; empty: not stated."""
    stage: str
    step: int = Field(ge=0)
    """Of the stage, from 0."""
    tokens: int = Field(ge=0)
    """That its training run had trained on."""
    reason: str
    """What its loss did."""

    @property
    def why(self) -> str:
        """Such as ``diverged in training (stage 'kd', step 12, after 53,248 tokens: the loss is nan)``."""
        place = f"stage '{self.stage}', step {self.step:,}, after {self.tokens:,} tokens"
        return f"diverged in training ({place}: {self.reason})"


def still_diverged(
    notes: Iterable[DivergedStudent],
    checkpoints: Sequence[CheckpointPlan],
    elsewhere: Sequence[CheckpointPlan] = (),
) -> tuple[DivergedStudent, ...]:
    """Return the last note on each student that was not trained again, in the same folder.

    Where a note does not state the folder, a checkpoint of the run has its label.

    Args:
        notes: of one run.
        checkpoints: of that run.
        elsewhere: of other runs.
    """
    last = {each.path or each.label: each for each in notes}
    return tuple(
        note
        for note in last.values()
        if not any(same_path(note.path, each.path) for each in (*checkpoints, *elsewhere))
        and (note.path or all(note.label != each.label for each in checkpoints))
    )


class UnplannedCells(Strict):
    """Cells of a merged plan that no run of these checkpoints has."""

    benchmark: str
    protocol: Protocol
    contexts: tuple[int | None, ...] = Field(min_length=1)
    """[null] for a benchmark without contexts."""
    checkpoints: tuple[str, ...] = Field(min_length=1)
    """Labels."""


class Plan(Strict):
    """`plan.yaml`: benchmarks, checkpoints, and everything else that the reports need to know about a run."""

    schema_: Literal[3] = Field(default=3, alias="schema")
    suite: str
    created: str
    """ISO 8601, UTC."""
    benchmarks: tuple[BenchmarkPlan, ...] = Field(min_length=1)
    checkpoints: tuple[CheckpointPlan, ...] = Field(min_length=1)
    max_length: int | None = Field(default=None, ge=1)
    """Positions that checkpoints are extended to where their configs state fewer; None: they are not."""
    diverged: tuple[DivergedStudent, ...] = ()
    """Students that were to be evaluated and have no checkpoint."""
    unplanned: tuple[UnplannedCells, ...] = ()
    """Of published samples, whose runs may have planned other benchmarks for each checkpoint."""

    def limit(self, checkpoint: CheckpointPlan) -> ContextLimit:
        """Return which contexts a checkpoint reads in this run."""
        return ContextLimit(checkpoint.positions, self.max_length)

    def has(self, checkpoint: CheckpointPlan, benchmark: str, protocol: str, context: int | None) -> bool:
        """Whether a cell of the plan is planned for a checkpoint."""
        return not any(
            (benchmark, protocol) == (cells.benchmark, cells.protocol)
            and context in cells.contexts
            and checkpoint.label in cells.checkpoints
            for cells in self.unplanned
        )

    @model_validator(mode="after")
    def _names_are_unique(self) -> "Plan":
        identities = [
            (each.weights_id, name) for each in self.checkpoints for name in each.fingerprints or ("",)
        ]
        whole = {weights for weights, name in identities if not name}
        for what, names in (
            ("benchmark", [benchmark.name for benchmark in self.benchmarks]),
            ("weights_id", [each.weights_id for each in self.checkpoints if each.weights_id in whole]),
            ("fingerprint", [f"{name} of {weights}" for weights, name in identities if name]),
            ("label", [checkpoint.label for checkpoint in self.checkpoints]),
        ):
            repeated = sorted({name for name in names if names.count(name) > 1})
            if repeated:
                raise ValueError(f"{what} '{repeated[0]}' is listed twice")
        return self

    def checkpoint(self, weights_id: str, fingerprint: str) -> CheckpointPlan | None:
        """Return the checkpoint of a score row; None for a row of another run."""
        for each in self.checkpoints:
            if each.weights_id == weights_id and (not each.fingerprints or fingerprint in each.fingerprints):
                return each
        return None

    def cells(self) -> list[tuple[BenchmarkPlan, str]]:
        """List every benchmark under each of its protocols."""
        return [(benchmark, protocol) for benchmark in self.benchmarks for protocol in benchmark.protocols]


def write_plan(run: Path, plan: Plan) -> None:
    """Write `<run>/plan.yaml`, atomically.

    Raises:
        RunFolderError: the folder cannot be written.
        ConfigError: the plan is not valid (`model_copy` does not validate) and could not be read again.
    """
    path = Path(run) / "plan.yaml"
    write_text(path, plan_text(plan, str(path)))


def plan_text(plan: Plan, source: str) -> str:
    """Return the content of a `plan.yaml`; `source` names the file in errors.

    Raises:
        ConfigError: as `write_plan`.
    """
    value = plan.model_dump(mode="json", by_alias=True)
    optional = [(value, "max_length"), (value, "unplanned")]
    of_samples = ("fingerprints", "compared_with")
    for holder, name in (*optional, *((each, name) for each in value["checkpoints"] for name in of_samples)):
        if not holder[name]:
            del holder[name]
    parse(value, Plan, source)
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)


def read_plan(run: Path) -> Plan:
    """Read `<run>/plan.yaml`.

    Raises:
        RunFolderError: `run` is not a run folder.
        ConfigError: the plan has unknown or missing keys, or another schema.
    """
    path = Path(run) / "plan.yaml"
    if not path.is_file():
        raise RunFolderError(f"{run}: not a run folder (it has no plan.yaml)")
    value = read_yaml(path)
    if value.get("schema") != SCHEMA:
        raise ConfigError(
            f"{path}: 'schema' = {value.get('schema')!r}; this evalsuite reads {SCHEMA}, which states the "
            "number of documents of every benchmark, protocol and context: copy responses/ into a new run "
            "folder and repeat the evaluation there; only what is missing is computed"
        )
    return parse(value, Plan, str(path))


def write_environment(run: Path, environment: dict[str, Any]) -> None:
    """Write `<run>/environment.json`: versions, hardware, seeds, data checksums, git state."""
    write_json(Path(run) / "environment.json", environment)


def read_environment(run: Path) -> dict[str, Any]:
    """Read `<run>/environment.json`; returns an empty mapping if the run has none yet."""
    path = Path(run) / "environment.json"
    if not path.exists():
        return {}
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected a JSON object")
    return value
