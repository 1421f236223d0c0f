"""Models that cannot answer leave errors with reasons in the records, counted, and never a zero."""

import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from tests.evaluation.runs import evaluate_quietly
from tests.reports.score_edits import rows_by_cell


def nan_model(tiny: Path, folder: Path) -> Path:
    """`tiny` with one weight that is not a number."""
    shutil.copytree(tiny, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.mlp.down_proj.weight"][0, 0] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_inference_errors_are_recorded_and_counted(tiny: Path, tmp_path: Path) -> None:
    model = nan_model(tiny, tmp_path / "model")
    suite = tmp_path / "s.yaml"
    suite.write_text(
        "name: s\ntitle: S\nbenchmarks: [{benchmark: pocket_niah_single_2, contexts: [128], limit: 2}]\n"
    )
    summary = evaluate_quietly(suite=suite, checkpoints=[str(model)], out=tmp_path / "run", teacher=str(tiny))
    found = [row for rows in rows_by_cell(tmp_path / "run").values() for row in rows]
    records = [record for record in found if record["checkpoint"] == "model"]
    assert len(records) == 4
    assert {record["outcome"] for record in found if record["checkpoint"] != "model"} != {"error"}
    for record in records:
        assert record["outcome"] == "error"
        assert record["values"] == {}
        assert "not finite" in record["error"]
    ((count, example),) = summary.errors.values()
    assert count == 4
    assert "not finite" in example
    assert "4 documents failed, e.g." in str(summary)
