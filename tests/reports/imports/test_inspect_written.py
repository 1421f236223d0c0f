"""Logs that the installed inspect_ai writes, of its mock model."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from evalsuite.foundation import DataError
from evalsuite.reports import RunSelection
from evalsuite.reports.imports import find_importer, import_logs
from evalsuite.reports.records.score_table import score_table
from evalsuite.reports.report import build_report

DOCUMENTS, LIMIT, EPOCHS = 8, 5, 3


def written(folder: Path, kind: str = "eval", *, reducers: list[str], **settings: Any) -> Path:
    """Evaluate the mock model, and return the log."""
    pytest.importorskip("inspect_ai")
    from inspect_ai import Epochs, Task, eval
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import GenerateConfig, ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import match
    from inspect_ai.solver import generate

    outputs = []
    for number in range(LIMIT * EPOCHS):
        output = ModelOutput.from_content("mockllm/model", str(number % 4))
        # Without it, the mock model counts tokens with a tokenizer from the net.
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        outputs.append(output)
    samples = [Sample(id=f"s{i}", input=f"Say {i % 4}.", target=str(i % 4)) for i in range(DOCUMENTS)]
    task = Task(
        dataset=MemoryDataset(samples, name="numbers"),
        solver=generate(),
        scorer=match(),
        epochs=Epochs(EPOCHS, reducers),
        name="numbers",
        config=GenerateConfig(max_tokens=5),
    )
    model = get_model("mockllm/model", custom_outputs=outputs, memoize=False, **settings)
    (log,) = eval(
        task, model=model, limit=LIMIT, max_samples=1, log_dir=str(folder), log_format=kind, display="none"
    )
    assert log.status == "success"
    return Path(log.location)


def test_epochs_and_limits_are_counted_as_inspect_does(tmp_path: Path) -> None:
    paths = [written(tmp_path / kind, kind, reducers=["mean", "max"]) for kind in ("eval", "json")]
    tables = []
    for path in paths:
        assert find_importer(path.parent) == "inspect"
        (run,) = import_logs([("inspect", path.parent)], tmp_path / "runs" / path.suffix)
        report = build_report([run])
        (cell,) = report.tensor.cells
        assert cell.values.shape == (1, EPOCHS, LIMIT)
        assert not report.tensor.incomplete
        # The mock model's outputs, which have ids of their own, are arguments of the model.
        tables.append(score_table(run).drop(columns=["weights_id", "fingerprint"]))
    assert tables[0].equals(tables[1])
    log = json.loads(paths[1].read_text())
    (expected,) = (each for each in log["results"]["scores"] if each["reducer"] == "mean")
    assert tables[1]["score"].mean() == pytest.approx(expected["metrics"]["accuracy"]["value"])


def test_epochs_that_are_not_averaged_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "logs", reducers=["at_least_2"])
    with pytest.raises(DataError, match=r"'match' reduces epochs by 'at_least_2', where evalsuite averages"):
        import_logs([("inspect", path)], tmp_path / "runs")


def test_models_of_other_settings_are_two_checkpoints(tmp_path: Path) -> None:
    GenerateConfig = pytest.importorskip("inspect_ai.model").GenerateConfig

    for temperature in (0.0, 1.0):
        written(tmp_path / "logs", reducers=["mean"], config=GenerateConfig(temperature=temperature))
    runs = import_logs([("inspect", tmp_path / "logs")], tmp_path / "runs", benchmarks=["numbers"])
    labels = [each.label for each in build_report(runs, RunSelection()).checkpoints]
    assert sorted(labels) == ["model (temperature=0.0)", "model (temperature=1.0)"]


def test_an_archive_that_lost_its_end_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "logs", reducers=["mean"])
    assert zipfile.is_zipfile(path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match=path.name):
        import_logs([("inspect", tmp_path / "logs")], tmp_path / "runs")
