"""Logs that the installed EvalScope writes, of a stub model and two subsets of different sizes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalsuite.cli.entry import main
from evalsuite.reports import RunSelection
from evalsuite.reports.imports import find_importer, import_logs
from evalsuite.reports.records.score_table import score_table
from evalsuite.reports.report import build_report

SIZES = {"ARC-Easy": 9, "ARC-Challenge": 4}
LIMIT = 6
REPEATS = 2


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder above the work folders of two models: sampled twice, limited, over two subsets."""
    pytest.importorskip("evalscope")
    from evalscope import TaskConfig, run_task
    from evalscope.api.model import ModelAPI, ModelOutput

    folder = tmp_path_factory.mktemp("evalscope")
    data = folder / "arc"
    for name, count in SIZES.items():
        (data / name).mkdir(parents=True)
        rows = [
            {
                "id": str(i),
                "question": f"Which letter has number {i} in {name}?",
                "choices": {"text": ["a", "b", "c", "d"], "label": ["A", "B", "C", "D"]},
                "answerKey": "ABCD"[i % 4],
            }
            for i in range(count)
        ]
        (data / name / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = [f"{{config_name: {n}, data_files: [{{split: test, path: {n}/test.jsonl}}]}}" for n in SIZES]
    (data / "README.md").write_text(f"---\nconfigs: [{', '.join(files)}]\n---\n")

    class Stub(ModelAPI):  # type: ignore[misc]
        """Responds with letters in turn, whatever the question."""

        responses = 0

        def generate(self, input: Any, tools: Any, tool_choice: Any, config: Any) -> ModelOutput:
            self.responses += 1
            skill = 5 if self.model_name == "big" else 3
            letter = "ABCD"[(self.responses // REPEATS if self.responses % skill else 0) % 4]
            return ModelOutput.from_content(model=self.model_name, content=f"ANSWER: {letter}")

    for model in ("big", "small"):
        run_task(
            TaskConfig(
                model=Stub(model_name=model),
                model_id=model,
                eval_type="custom",
                datasets=["arc"],
                dataset_args={"arc": {"dataset_id": str(data), "few_shot_num": 0}},
                repeats=REPEATS,
                limit=LIMIT,
                generation_config={"temperature": 1.0, "max_tokens": 8},
                work_dir=str(folder / "outputs" / model),
            )
        )
    return folder / "outputs"


def reported(work: Path, model: str) -> dict[str, Any]:
    (path,) = work.glob(f"{model}/*/reports/{model}/arc.json")
    (metric,) = json.loads(path.read_text())["metrics"]
    return metric


def test_repeats_are_seeds_of_their_document(work: Path, tmp_path: Path) -> None:
    assert find_importer(work) == "evalscope"
    runs = import_logs([("evalscope", work)], tmp_path / "runs")
    report = build_report(runs, RunSelection(teacher="big"))
    planned = {name: min(LIMIT, size) for name, size in SIZES.items()}
    assert {cell.benchmark.name: cell.values.shape for cell in report.tensor.cells} == {
        f"arc.{name}": (2, REPEATS, count) for name, count in planned.items()
    }
    assert not report.tensor.incomplete
    for run, model in zip(runs, ("big", "small"), strict=True):
        (category,) = reported(work, model)["categories"]
        expected = {f"arc.{each['name']}": each["score"] for each in category["subsets"]}
        table = score_table(run)
        found = table[table["main"]].groupby("benchmark")["score"].mean().to_dict()
        assert found == pytest.approx(expected, abs=1e-4)


def test_the_average_is_evalscopes(work: Path, tmp_path: Path) -> None:
    runs = import_logs([("evalscope", work)], tmp_path / "runs")
    report = build_report(runs, RunSelection(teacher="big"))
    for number, model in enumerate(("big", "small")):
        average = report.average(number, "generation")
        assert average is not None
        assert average.score.point == pytest.approx(reported(work, model)["score"], abs=1e-4)


def test_the_folder_above_is_compared(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(work), "--teacher", "big", "--out", str(tmp_path / "report")]) == 0
    assert "small" in capsys.readouterr().out


def _subset(folder: Path) -> None:
    next(folder.rglob("reviews/small/arc_ARC-Easy.jsonl")).unlink()
    next(folder.rglob("predictions/small/arc_ARC-Easy.jsonl")).unlink()


def _model(folder: Path) -> None:
    for path in folder.rglob("reviews/small/*.jsonl"):
        path.unlink()


def _config(folder: Path) -> None:
    next(folder.glob("small/*/configs/task_config.yaml")).unlink()


@pytest.mark.parametrize("damage", [_subset, _model, _config])
def test_a_part_that_is_missing_is_named(
    work: Path, tmp_path: Path, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    logs = tmp_path / "logs"
    shutil.copytree(work, logs)
    damage(logs)
    gate = ["gate", str(logs), "--teacher", "big", "--min-recovery", "0.1", "--out", str(tmp_path / "out")]
    assert main(gate) == 65
    assert "small" in capsys.readouterr().err
