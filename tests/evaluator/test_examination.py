"""What the doctor finds lands beside the run, and the comparison heeds it."""

from pathlib import Path
from typing import Any

import pytest

from evalsuite.cli.entry import main
from evalsuite.evaluator.examination import examined, write
from evalsuite.foundation import RunFolderError, read_json
from evalsuite.reports.extras import read_costs, read_doctor


def check(name: str, **found: Any) -> dict[str, Any]:
    return {
        "name": name,
        "what": f"asked {name}",
        "largest": 0.0,
        "changed_tokens": 0,
        "of": 0,
        "changed_answers": 0,
        "answers": 10,
        "skipped": None,
    } | found


def result(dtype: str, *checks: dict[str, Any]) -> dict[str, Any]:
    return {"label": "x", "weights_id": "0" * 16, "dtype": dtype, "checks": list(checks)}


@pytest.mark.parametrize(
    ("dtype", "found", "status"),
    [
        ("float32", check("packed", largest=1e-4), "ok"),
        ("float32", check("packed", largest=1e-2), "warning"),
        ("float32", check("packed", largest=1.0), "failed"),
        ("bfloat16", check("packed", largest=0.3), "ok"),
        ("bfloat16", check("packed", largest=0.3, changed_answers=1), "warning"),
        ("bfloat16", check("packed", largest=9.0), "failed"),
        ("float32", check("precision bfloat16", largest=9.0), "ok"),
        ("float32", check("precision bfloat16", largest=0.1, changed_answers=2), "warning"),
        ("float32", check("backend", skipped="no GPU", answers=0), "ok"),
    ],
)
def test_what_a_deviation_means(dtype: str, found: dict[str, Any], status: str) -> None:
    (judged,) = examined(result(dtype, found))["checks"]
    assert judged["status"] == status
    assert ("skipped: no GPU" in judged["text"]) == bool(found["skipped"])


def test_findings_are_kept_per_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="not a run folder"):
        write(tmp_path, examined(result("float32", check("packed"))))
    (tmp_path / "plan.yaml").write_text("schema: 1\n")
    for changed in (3, 1):
        write(tmp_path, examined(result("float32", check("packed", changed_answers=changed))))
    other = examined(result("float32", check("packed"))) | {"weights_id": "1" * 16}
    write(tmp_path, other)
    first, second = read_doctor([tmp_path])
    assert (first.changed, second.changed) == (0.1, 0.0)


def test_from_a_run_to_the_comparison(
    tiny: Path, tmp_path: Path, suite: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["run", str(suite), "--teacher", str(tiny), "--out", str(run), "--quiet"]) == 0
    assert main(["doctor", str(tiny), "--out", str(run), "--documents", "3"]) == 0
    assert main(["bench", str(tiny), "--contexts", "32", "--batch", "2", "--out", str(run)]) == 0
    printed = capsys.readouterr().out
    assert "padded left" in printed
    assert "read tok/s" in printed
    (found,) = read_doctor([run])
    assert {each.name for each in found.checks} >= {"batched", "packed", "decode", "generation"}
    assert found.weights_id == read_json(run / "requests" / "index.json")["checkpoints"][0]["weights_id"]
    (cost,) = read_costs([run])
    assert (cost.context, cost.batch) == (32, 2)
    tokens, layers, heads, width, float32 = 32, 2, 2, 16, 4
    assert cost.state_bytes == tokens * layers * 2 * heads * width * float32


def test_a_run_of_another_tokenizer_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "pocket", "--out", str(tmp_path), "--documents", "2"]) >= 64
    assert "nothing is rendered here" in capsys.readouterr().err
