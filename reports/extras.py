"""What may lie beside the records of a run: the doctor's findings, costs, and how layers were chosen.

doctor.json       {"schema": 1, "checkpoints": [{"label", "weights_id", "checks": [{"name", "status",
                  "text", "logprob", "changed"}]}]}; status is ok, warning or failed; logprob is the
                  largest deviation in nats; changed is the share of answers that changed (both or null)
efficiency.jsonl  {"schema": 1, "weights_id", "context", "batch", "prefill_tokens_per_second",
                  "decode_tokens_per_second", "state_bytes", "peak_bytes", "device"} per line
selection.json    {"schema": 1, "selector", "layers", "scores", "history": [{"tokens", "layers"}], …}: what
                  `evalsuite select` writes (one such object, or a list); see `Selection`
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

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
    """Tokens that each candidate was trained on so far; 0 for a search that trains nothing."""
    layers: tuple[int, ...]
    step: int | None = None
    """Optimizer steps so far, or the number of layers decided in a search by depth."""
    scores: tuple[float | None, ...] = ()
    """Importance of each layer at this point; higher is kept first."""


class Stability(Strict):
    """How steady the chosen set was over the last window of snapshots (KL-guided selection, Appendix B)."""

    stopped: bool
    """Whether the early-stop rule ended the pass; false if the budget did."""
    step: int
    steps: int
    """Optimizer steps done, and those of the whole budget."""
    window: int
    jaccard: float
    """Mean pairwise Jaccard similarity of the window's sets."""
    backbone: int
    """Layers in all sets of the window."""
    union: int
    """Layers in any set of the window."""
    saved_tokens: int
    """Student tokens of the budget that were not spent, over all candidates."""
    saved_share: float = Field(ge=0, le=1)


class HybridQuality(Strict):
    """How good the hybrid with this many softmax layers is, as the selector itself measures it."""

    layers: int
    value: float


class SelectedFrom(Strict):
    """The teacher that layers were chosen in."""

    path: str
    weights_id: str


class Selection(Strict):
    """`selection.json`: how softmax layers were chosen."""

    schema_: Literal[1] = Field(alias="schema")
    selector: str
    layers: tuple[int, ...]
    scores: tuple[float | None, ...] = ()
    """Importance of each layer; higher is kept first."""
    measure: str = ""
    """What a score is, with its unit."""
    history: tuple[Step, ...] = ()
    budget: int | None = None
    teacher: SelectedFrom | None = None
    mixer: str | None = None
    """What stood in the other layers while choosing: the probe. None where no student was needed."""
    recipe: str | None = None
    stability: Stability | None = None
    quality: tuple[HybridQuality, ...] = ()
    """By number of softmax layers, before the chosen hybrid is distilled."""
    quality_measure: str = ""
    cost: dict[str, float] = Field(default_factory=dict)
    """Such as student_tokens, teacher_tokens, separate_student_tokens, seconds."""
    notes: tuple[str, ...] = ()
    options: dict[str, Any] = Field(default_factory=dict)
    details: dict[str, Any] = Field(default_factory=dict)
    """What else the selector wants known, such as raw measurements by layer."""
    device: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    created: str = ""


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
