"""Documents for `evalsuite doctor`, and its findings in a run (`doctor.json`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evalsuite.evaluation.build import fewshot_examples
from evalsuite.evaluation.checkpoints import tokenizer_id
from evalsuite.evaluation.run_paths import cells_of, read_built, read_requests
from evalsuite.evaluation.served import served_verdict
from evalsuite.foundation import DataError, RunFolderError, locked, read_json, write_json
from evalsuite.models.inference.requests import ScoreRequest
from evalsuite.models.inference.settling import HALF_TOLERANCE, TOLERANCES, Tolerance
from evalsuite.protocols.loglikelihood import LogLikelihoodBenchmark
from evalsuite.protocols.tokenization import Encoder
from evalsuite.reports.run import FILE, is_run_folder
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.sources.documents import documents, sample_documents

DEFAULT_BENCHMARKS = ("pocket_cloze", "pocket_facts")
"""Used without a run and without --benchmark; they need no data and no network."""


def sample_run_requests(run: Path, tokenizer: Any, count: int) -> list[ScoreRequest]:
    """Return a sample of the multiple-choice requests of a run.

    Raises:
        RunFolderError: the run has no requests, or none for this tokenizer.
        DataError: the run has no multiple-choice benchmark.
    """
    manifest, name = read_built(run), tokenizer_id(tokenizer)
    if name not in {each.tokenizer for each in manifest.checkpoints}:
        raise RunFolderError(f"{run}: no requests for this checkpoint's tokenizer; run it there first")
    cells = [cell for cell in cells_of(manifest) if cell.protocol == "loglikelihood"]
    found = [
        request
        for cell in cells
        for request_set in read_requests(run, name, cell)[:count]
        for request in request_set.score_requests
        if len(request.continuations) > 1
    ]
    if not found:
        raise DataError(f"{run}: no multiple-choice benchmark; name one with --benchmark")
    step = max(1, len(found) // count)
    return found[::step][:count]


def sample_benchmark_requests(
    names: Sequence[str],
    tokenizer: Any,
    count: int,
    data_dir: Path | str | None,
    max_length: int,
    *,
    trust_remote_code: bool = False,
) -> list[ScoreRequest]:
    """Return a sample of benchmarks' requests, the same number of each. Raises as `documents`."""
    found: list[ScoreRequest] = []
    for name in names:
        benchmark = load_benchmark(name)
        if benchmark.loglikelihood is None:
            raise DataError(f"{name}: has no choices whose log-likelihoods could be compared")
        num_fewshot = benchmark.loglikelihood.num_fewshot
        available = documents(benchmark, data_dir=data_dir, limit=count)
        chosen = sample_documents(available, -(-count // len(names)), 0)
        examples = fewshot_examples(benchmark, num_fewshot, data_dir)
        harness = LogLikelihoodBenchmark(
            benchmark,
            chosen,
            num_fewshot=num_fewshot,
            examples=examples,
            trust_remote_code=trust_remote_code,
        )
        request_sets = harness.request_sets(Encoder(tokenizer), max_length)
        found += [request for request_set in request_sets for request in request_set.score_requests]
    return [request for request in found if len(request.continuations) > 1][:count]


def summarize_checks(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the findings of the consistency checks in the form of `doctor.json`.

    A check in the model's own dtype fails if rounding cannot explain the deviation, and warns if rounding
    hardly explains it or a prediction changes. A check in another dtype only warns. A skipped check is ok,
    with the reason. Another engine has its verdict as one more check.
    """
    tolerance = TOLERANCES.get(result["dtype"], HALF_TOLERANCE)
    checks = [_check(check, tolerance) for check in result["checks"]]
    if "served" in result:
        verdict = served_verdict(result["served"]["passes"], result["dtype"])
        flips = max(verdict.flips.values())
        checks.append({"name": "served", "status": verdict.status, "text": verdict.text, "changed": flips})
    return {"label": result["label"], "weights_id": result["weights_id"], "checks": checks}


def _check(check: Mapping[str, Any], tolerance: Tolerance) -> dict[str, Any]:
    if check["skipped"]:
        return {"name": check["name"], "status": "ok", "text": f"skipped: {check['skipped']}"}
    same_precision = not check["name"].startswith("precision")
    changed = check["changed_responses"] / check["num_documents"] if check["num_documents"] else 0.0
    status = tolerance.status(check["max_difference"]) if same_precision else "ok"
    if changed > 0 and status == "ok":
        status = "warning"
    text = check["description"]
    if changed:
        text += f": {check['changed_responses']} of {check['num_documents']} predictions changed"
    if check["max_difference"] > tolerance.rounding:
        text += f", log-probabilities by up to {check['max_difference']:.2g} nats"
    found: dict[str, Any] = {"name": check["name"], "status": status, "text": text, "changed": changed}
    # Generated text has no log-probabilities to compare.
    return found if check["name"].startswith("generation") else found | {"logprob": check["max_difference"]}


def write_findings(run: Path, findings: dict[str, Any]) -> Path:
    """Write the findings on one checkpoint to the run's `doctor.json`, replacing earlier ones.

    Raises:
        RunFolderError: `run` is no run folder, or cannot be written.
    """
    if not is_run_folder(run):
        raise RunFolderError(f"{run}: not a run folder (no {FILE}), so there is no place for doctor.json")
    path = Path(run) / "doctor.json"
    with locked(path.with_name(f".{path.name}.lock")):
        known = read_json(path)["checkpoints"] if path.is_file() else []
        others = [each for each in known if each["weights_id"] != findings["weights_id"]]
        write_json(path, {"schema": 1, "checkpoints": [*others, findings]})
    return path
