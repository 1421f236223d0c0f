"""The doctor's questions, and what it writes beside a run (`doctor.json`, see `evalsuite.reports.extras`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsuite.evaluator.checkpoints import tokenizer_id
from evalsuite.evaluator.layout import index_path, read_index, read_questions
from evalsuite.foundation import DataError, RunFolderError, locked, read_json, write_json
from evalsuite.models.engine.requests import ScoreRequest
from evalsuite.protocols.encode import Encoder
from evalsuite.protocols.loglikelihood import LogLikelihoodBenchmark
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.documents import documents, sample, shot_rows

POCKET = ("pocket_cloze", "pocket_facts")
"""What is asked where no run and no benchmark is named; needs no data and no network."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Deviations of a log-probability, in nats, that rounding explains, and that nothing explains."""

    rounding: float
    broken: float


TOLERANCES = {"float32": Tolerance(1e-3, 0.1), "float64": Tolerance(1e-6, 1e-3)}
"""By dtype."""
HALF = Tolerance(0.5, 3.0)
"""With 8 (11) bits per activation, half a nat on one token is no sign of a fault."""


def requests_of_run(run: Path, tokenizer: Any, count: int) -> list[ScoreRequest]:
    """A sample of the multiple-choice documents of a run, as its checkpoints were asked.

    Raises:
        RunFolderError: nothing is rendered there, or not for this tokenizer.
        DataError: the run asks no multiple choice.
    """
    index, name = read_index(run), tokenizer_id(tokenizer)
    if name not in {asked.tokenizer for asked in index.checkpoints}:
        raise RunFolderError(f"{run}: holds no requests for this checkpoint's tokenizer; run it there first")
    cells = [cell for cell in index.cells if cell.protocol == "loglikelihood"]
    found = [
        request
        for cell in cells
        for question in read_questions(run, name, cell)[:count]
        for request in question.scores
        if len(request.continuations) > 1
    ]
    if not found:
        raise DataError(f"{run}: asks no multiple choice; name a benchmark with --benchmark")
    step = max(1, len(found) // count)
    return found[::step][:count]


def requests_of(
    names: Sequence[str], tokenizer: Any, count: int, data_dir: Path | str | None, max_length: int
) -> list[ScoreRequest]:
    """A sample of the documents of benchmarks, as many of each. Raises as `documents` does."""
    found: list[ScoreRequest] = []
    for name in names:
        benchmark = load_benchmark(name)
        if benchmark.loglikelihood is None:
            raise DataError(f"{name}: has no choices whose log-likelihoods could be compared")
        shots = benchmark.loglikelihood.shots
        chosen = sample(documents(benchmark, data_dir=data_dir, limit=count), -(-count // len(names)), 0)
        examples = shot_rows(benchmark, data_dir=data_dir) if shots else []
        harness = LogLikelihoodBenchmark(benchmark, chosen, shots=shots, examples=examples)
        questions = harness.questions(Encoder(tokenizer), max_length)
        found += [request for question in questions for request in question.scores]
    return [request for request in found if len(request.continuations) > 1][:count]


def examined(result: Mapping[str, Any]) -> dict[str, Any]:
    """What `evalsuite.models.doctor.examine` found, as `doctor.json` holds it.

    A check in the model's own dtype has failed where no rounding explains the deviation, and warns where
    rounding hardly does or an answer changes; a check in another dtype only warns. A skipped check is ok
    and says why it was skipped.
    """
    tolerance = TOLERANCES.get(result["dtype"], HALF)
    return {
        "label": result["label"],
        "weights_id": result["weights_id"],
        "checks": [_check(check, tolerance) for check in result["checks"]],
    }


def _check(check: Mapping[str, Any], tolerance: Tolerance) -> dict[str, Any]:
    if check["skipped"]:
        return {"name": check["name"], "status": "ok", "text": f"skipped: {check['skipped']}"}
    same_precision = not check["name"].startswith("precision")
    changed = check["changed_answers"] / check["answers"] if check["answers"] else 0.0
    status = "ok"
    if changed > 0 or (same_precision and check["largest"] > tolerance.rounding):
        status = "warning"
    if same_precision and check["largest"] > tolerance.broken:
        status = "failed"
    text = check["what"]
    if changed:
        text += f": {check['changed_answers']} of {check['answers']} answers changed"
    if check["largest"] > tolerance.rounding:
        text += f", log-probabilities by up to {check['largest']:.2g} nats"
    found: dict[str, Any] = {"name": check["name"], "status": status, "text": text, "changed": changed}
    # Written answers have no log-probabilities to compare.
    return found if check["name"].startswith("generation") else found | {"logprob": check["largest"]}


def write(run: Path, findings: dict[str, Any]) -> Path:
    """Put the findings on one checkpoint into the run's `doctor.json`, in place of earlier ones.

    Raises:
        RunFolderError: `run` is no run folder, or cannot be written.
    """
    if not index_path(run).is_file() and not (Path(run) / "plan.yaml").is_file():
        raise RunFolderError(f"{run}: not a run folder (no plan.yaml); the doctor writes beside records")
    path = Path(run) / "doctor.json"
    with locked(path.with_name(f".{path.name}.lock")):
        known = read_json(path)["checkpoints"] if path.is_file() else []
        kept = [each for each in known if each["weights_id"] != findings["weights_id"]]
        write_json(path, {"schema": 1, "checkpoints": [*kept, findings]})
    return path
