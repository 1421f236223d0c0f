"""Sidecar files of a run folder: results of the doctor, layer selections, loss curves.

doctor.json       {"schema": 1, "checkpoints": [{"label", "weights_id", "checks": [{"name", "status",
                  "text", "logprob", "changed"}]}]}; status is ok, warning or failed; logprob is the
                  largest deviation in nats; changed is the share of changed responses (both or null)
selection.json    how softmax layers were selected: one object, or a list with one per selector:
                  {"schema": 2, "selector", "layers", "mixer", "teacher", "measure", "scores",
                  "history": [{"step", "tokens", "layers"}], "stop": {"step", "tokens", "planned", "reason"},
                  "quality": [{"layers", "what", "score", "low", "high"}], "tokens", "seconds",
                  "details"};
                  `schema`, `selector` and `layers` are required, see `Selection` for the rest
training/         <label>.jsonl: {"stage", "tokens", "loss"} per step (further keys are ignored); `distill`
                  writes it to the student's folder as training.jsonl, and `run` and `run --merge-shards`
                  copy it here; files may be added by hand (see `loss_curves`)
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from evalsuite.foundation import DataError, counted, read_json
from evalsuite.foundation.strict import Strict, StrictModel, parse
from evalsuite.reports.records.names import labels_of_weights


class Check(Strict):
    """One check of the doctor."""

    name: str
    status: Literal["ok", "warning", "failed"]
    text: str = ""
    logprob: float | None = None
    """Largest deviation of a log-probability, in nats."""
    changed: float | None = Field(default=None, ge=0, le=1)
    """Share of responses that changed."""


class DoctorResult(Strict):
    """The doctor's checks of one checkpoint."""

    label: str
    weights_id: str
    checks: tuple[Check, ...]

    @property
    def changed(self) -> float:
        """The largest share of changed responses; 0 if no check counts them."""
        return max((check.changed or 0.0 for check in self.checks), default=0.0)


class DoctorReport(Strict):
    """`doctor.json`."""

    schema_: Literal[1] = Field(alias="schema")
    checkpoints: tuple[DoctorResult, ...]


class SelectionStep(Strict):
    """The layers selected at one point of a search."""

    tokens: int = Field(ge=0)
    """Tokens trained on so far, over all probes."""
    layers: tuple[int, ...]
    step: int | None = Field(default=None, ge=0)


class SelectionStop(Strict):
    """The end of a search."""

    tokens: int = Field(ge=0)
    step: int | None = Field(default=None, ge=0)
    planned: int | None = Field(default=None, ge=0)
    """Tokens that the complete search would have taken."""
    reason: Literal["stable", "budget"] = "stable"
    """`stable`: stopped early, because the selection no longer changed; `budget`: ran to its end."""


class SelectionQuality(Strict):
    """The score of a student with one set of softmax layers."""

    layers: tuple[int, ...]
    what: str
    """Description of `score`: ``S-NIAH-1 at 2k, generation``. Higher is better."""
    score: float = Field(ge=0, le=1)
    """A fraction; `low` and `high` are the ends of its 95 % interval, if known."""
    low: float | None = Field(default=None, ge=0, le=1)
    high: float | None = Field(default=None, ge=0, le=1)


class Selection(Strict):
    """`selection.json`: how softmax layers were selected. Layers count from 0."""

    schema_: Literal[2] = Field(alias="schema")
    selector: str = Field(min_length=1)
    layers: tuple[int, ...]
    """The layers that stay softmax."""
    mixer: str | None = None
    """Mixer of the other layers during probing."""
    teacher: str | None = None
    """weights_id of the teacher whose layers these are."""
    measure: str = "importance"
    """Description of `scores`: ``KL divergence won back, nats``."""
    heads: dict[int, tuple[int, ...]] = Field(default_factory=dict)
    """Other layers → their heads that stay softmax, chosen by a selector of heads."""
    head_scores: tuple[tuple[float | None, ...], ...] = ()
    """Of such a selector, in place of `scores`: one per layer and head of the teacher."""
    scores: tuple[float | None, ...] = ()
    """One per layer of the teacher; higher scores are selected first. None: not rated."""
    history: tuple[SelectionStep, ...] = ()
    """In the order of the search; the last step is the selection."""
    stop: SelectionStop | None = None
    quality: tuple[SelectionQuality, ...] = ()
    """Students with layers of this selector, for one or several numbers of softmax layers."""
    tokens: int | None = Field(default=None, ge=0)
    """Cost of the selection in tokens trained on; `seconds` is its wall time."""
    seconds: float | None = Field(default=None, ge=0)
    details: dict[str, Any] = Field(default_factory=dict)
    """Further output of the selector: settings, notes, costs, raw measurements; not shown."""

    @property
    def units(self) -> tuple[int, ...]:
        """The layers, or the heads of a selector of heads, numbered through all layers."""
        if not self.head_scores:
            return self.layers
        count = len(self.head_scores[0])
        heads = {**self.heads, **dict.fromkeys(self.layers, range(count))}
        return tuple(layer * count + head for layer in sorted(heads) for head in heads[layer])

    @property
    def unit_scores(self) -> tuple[float | None, ...]:
        """Scores of all layers or heads, in the same numbers."""
        return tuple(score for scores in self.head_scores for score in scores) or self.scores

    @property
    def chosen(self) -> str:
        """Such as ``layer 3``, ``2 layers: 1, 5`` or ``3 heads: 0, 4 of layer 1; 2 of layer 7``."""
        parts = []
        if self.layers:
            name = "layer" if len(self.layers) == 1 else f"{len(self.layers)} layers:"
            parts.append(f"{name} {', '.join(map(str, sorted(self.layers)))}")
        if self.heads:
            count = sum(map(len, self.heads.values()))
            listed = "; ".join(
                f"{', '.join(map(str, own))} of layer {layer}" for layer, own in sorted(self.heads.items())
            )
            parts.append(f"{counted(count, 'head')}: {listed}")
        return " and ".join(parts)

    @model_validator(mode="before")
    @classmethod
    def _refuse_schema_1(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("schema") == 1:
            raise ValueError("selection schema 1 is not supported; select again with `evalsuite select`")
        return value

    @model_validator(mode="after")
    def _layers_are_the_teachers(self) -> "Selection":
        sets = [self.layers, *(step.layers for step in self.history), *(each.layers for each in self.quality)]
        for layers in sets:
            if len(set(layers)) < len(layers) or min(layers, default=0) < 0:
                raise ValueError(f"layers {list(layers)}: must be unique and at least 0")
            if self.scores and max(layers, default=0) >= len(self.scores):
                raise ValueError(f"layers {list(layers)}: there are scores for {len(self.scores)} layers")
        counts = {len(scores) for scores in self.head_scores}
        for layer, heads in self.heads.items():
            scored = len(counts) == 1 and 0 <= layer < len(self.head_scores) and layer not in self.layers
            if not (scored and heads and set(heads) <= set(range(*counts)) and len(set(heads)) == len(heads)):
                raise ValueError(f"heads {list(heads)} of layer {layer}: unique ones with 'head_scores' only")
        along = [step.tokens for step in self.history]
        if along != sorted(along):
            raise ValueError("'history' must be in the order of the search: its tokens never decrease")
        if self.history and set(self.history[-1].layers) != set(self.layers):
            raise ValueError("the last layers of 'history' are not 'layers'")
        return self


def read_doctor(runs: Sequence[Path]) -> list[DoctorResult]:
    """Read the doctor's results of all runs; the label of two models gets their weights as a suffix.

    Raises:
        ConfigError: an invalid file.
    """
    found: list[DoctorResult] = []
    for run in runs:
        path = Path(run) / "doctor.json"
        if path.exists():
            found += _parse(read_json(path), DoctorReport, path).checkpoints
    labels = labels_of_weights((each.weights_id, each.label) for each in found)
    return [each.model_copy(update={"label": labels[each.weights_id]}) for each in found]


def read_selection(path: Path) -> Selection:
    """Read one selection from a file. Raises DataError or ConfigError for an invalid file."""
    return _parse(read_json(path), Selection, path)


def read_selections(runs: Sequence[Path]) -> list[Selection]:
    """Read the layer selections of all runs."""
    found = []
    for run in runs:
        path = Path(run) / "selection.json"
        if path.exists():
            value = read_json(path)
            found += [
                _parse(each, Selection, path) for each in (value if isinstance(value, list) else [value])
            ]
    return found


def _parse(value: Any, kind: type[StrictModel], source: Path | str) -> StrictModel:
    if not isinstance(value, dict):
        raise DataError(f"{source}: expected a JSON object")
    return parse(value, kind, str(source))
