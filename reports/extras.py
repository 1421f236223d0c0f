"""What may lie beside the records of a run: the doctor's findings, costs, and how layers were chosen.

doctor.json       {"schema": 1, "checkpoints": [{"label", "weights_id", "checks": [{"name", "status",
                  "text", "logprob", "changed"}]}]}; status is ok, warning or failed; logprob is the
                  largest deviation in nats; changed is the share of answers that changed (both or null)
efficiency.jsonl  {"schema": 1, "weights_id", "context", "batch", "prefill_tokens_per_second",
                  "decode_tokens_per_second", "state_bytes", "peak_bytes", "device"} per line
selection.json    how softmax layers were chosen, one object (or a list of them, one per selector):
                  {"schema": 1, "selector", "layers", "mixer", "teacher", "measure", "scores",
                  "history": [{"step", "tokens", "layers"}], "stop": {"step", "tokens", "planned", "why"},
                  "quality": [{"layers", "what", "score", "low", "high"}], "tokens", "seconds",
                  "details"};
                  `schema`, `selector` and `layers` are needed, see `Selection` for the rest
training/         <label>.jsonl: {"stage", "tokens", "loss"} per step (further keys are not read); `distill`
                  leaves it in a finished student's folder as training.jsonl, `run` and `run --add` bring it
                  here, and one for a student without it may be put here by hand (see `training`)
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from evalsuite.foundation import DataError, read_json, read_jsonl
from evalsuite.foundation.strict import Strict, StrictModel, parse


class Check(Strict):
    """One comparison of the doctor."""

    name: str
    status: Literal["ok", "warning", "failed"]
    text: str = ""
    logprob: float | None = None
    """Largest deviation of a log-probability, in nats."""
    changed: float | None = Field(default=None, ge=0, le=1)
    """Share of answers that changed."""


class Examined(Strict):
    """What the doctor found at one checkpoint."""

    label: str
    weights_id: str
    checks: tuple[Check, ...]

    @property
    def changed(self) -> float:
        """The largest share of changed answers, 0 if none was counted."""
        return max((check.changed or 0.0 for check in self.checks), default=0.0)


class Doctor(Strict):
    """`doctor.json`."""

    schema_: Literal[1] = Field(alias="schema")
    checkpoints: tuple[Examined, ...]


class Cost(Strict):
    """One line of `efficiency.jsonl`: what a checkpoint costs at one context and batch size."""

    schema_: Literal[1] = Field(alias="schema")
    weights_id: str
    context: int = Field(ge=1)
    batch: int = Field(ge=1)
    prefill_tokens_per_second: float | None = None
    decode_tokens_per_second: float | None = None
    state_bytes: int | None = None
    """KV cache or recurrent state, per sequence."""
    peak_bytes: int | None = None
    device: str = ""


class Step(Strict):
    """The layers that a selector held at one point of its search."""

    tokens: int = Field(ge=0)
    """Trained on so far, over all probes together."""
    layers: tuple[int, ...]
    step: int | None = Field(default=None, ge=0)


class Stop(Strict):
    """Where a search ended."""

    tokens: int = Field(ge=0)
    step: int | None = Field(default=None, ge=0)
    planned: int | None = Field(default=None, ge=0)
    """Tokens that the whole search would have taken."""
    why: Literal["stable", "budget"] = "stable"
    """`stable`: stopped early, as its choice no longer changed; `budget`: it ran to its end."""


class Quality(Strict):
    """How good a student with one set of softmax layers is."""

    layers: tuple[int, ...]
    what: str
    """What `score` is: ``S-NIAH-1 at 2k, written``. Higher is better."""
    score: float = Field(ge=0, le=1)
    """A fraction, with the ends of its 95 % interval where they are known."""
    low: float | None = Field(default=None, ge=0, le=1)
    high: float | None = Field(default=None, ge=0, le=1)


class Selection(Strict):
    """`selection.json`: how softmax layers were chosen. Layers count from 0."""

    schema_: Literal[1] = Field(alias="schema")
    selector: str = Field(min_length=1)
    layers: tuple[int, ...]
    """The layers that stay softmax."""
    mixer: str | None = None
    """What the other layers became while probing."""
    teacher: str | None = None
    """weights_id of the teacher whose layers these are."""
    measure: str = "importance"
    """What `scores` are: ``KL divergence won back, nats``."""
    scores: tuple[float | None, ...] = ()
    """One per layer of the teacher; higher is kept first. None: not rated."""
    history: tuple[Step, ...] = ()
    """In the order of the search; the last one is what was chosen."""
    stop: Stop | None = None
    quality: tuple[Quality, ...] = ()
    """Students with this selector's layers, at one number of softmax layers or several."""
    tokens: int | None = Field(default=None, ge=0)
    """What the selection cost, in tokens trained on and in seconds."""
    seconds: float | None = Field(default=None, ge=0)
    details: dict[str, Any] = Field(default_factory=dict)
    """What else the selector wrote down: settings, notes, costs, raw measurements; shown nowhere."""

    @model_validator(mode="after")
    def _layers_are_the_teachers(self) -> "Selection":
        sets = [self.layers, *(step.layers for step in self.history), *(each.layers for each in self.quality)]
        for layers in sets:
            if len(set(layers)) < len(layers) or min(layers, default=0) < 0:
                raise ValueError(f"layers {list(layers)}: each counts from 0 and stands once")
            if self.scores and max(layers, default=0) >= len(self.scores):
                raise ValueError(f"layers {list(layers)}: there are scores of {len(self.scores)} layers")
        along = [step.tokens for step in self.history]
        if along != sorted(along):
            raise ValueError("'history' is in the order of the search: its tokens never fall")
        if self.history and set(self.history[-1].layers) != set(self.layers):
            raise ValueError("the last layers of 'history' are not 'layers'")
        return self


def read_doctor(runs: Sequence[Path]) -> list[Examined]:
    """The doctor's findings of all runs. Raises ConfigError for a file of another form."""
    found: list[Examined] = []
    for run in runs:
        path = Path(run) / "doctor.json"
        if path.exists():
            found += _parse(read_json(path), Doctor, path).checkpoints
    return found


def read_costs(runs: Sequence[Path]) -> list[Cost]:
    """Efficiency records of all runs."""
    found = []
    for run in runs:
        path = Path(run) / "efficiency.jsonl"
        found += [_parse(row, Cost, f"{path}, line {i}") for i, row in enumerate(read_jsonl(path), 1)]
    return found


def read_selection(path: Path) -> Selection:
    """One selection, from any file. Raises DataError or ConfigError for a file of another form."""
    return _parse(read_json(path), Selection, path)


def read_selections(runs: Sequence[Path]) -> list[Selection]:
    """Layer selections of all runs."""
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
