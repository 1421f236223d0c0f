"""The results of `doctor` are stored in the run folder, and `compare` warns by them."""

from pathlib import Path
from typing import Any

import pytest

from evalsuite.cli.entry import main
from evalsuite.evaluation.checks import summarize_checks, write_findings
from evalsuite.foundation import RunFolderError, read_json
from evalsuite.reports.records.efficiency import read_efficiency
from evalsuite.reports.records.sidecars import read_doctor


def check(name: str, **found: Any) -> dict[str, Any]:
    return {
        "name": name,
        "description": f"way {name}",
        "max_difference": 0.0,
        "changed_tokens": 0,
        "num_tokens": 0,
        "changed_responses": 0,
        "num_documents": 10,
        "skipped": None,
    } | found


def result(dtype: str, *checks: dict[str, Any]) -> dict[str, Any]:
    return {"label": "x", "weights_id": "0" * 16, "dtype": dtype, "checks": list(checks)}


@pytest.mark.parametrize(
    ("dtype", "found", "status"),
    [
        ("float32", check("packed", max_difference=1e-4), "ok"),
        ("float32", check("packed", max_difference=1e-2), "warning"),
        ("float32", check("packed", max_difference=1.0), "failed"),
        ("bfloat16", check("packed", max_difference=0.3), "ok"),
        ("bfloat16", check("packed", max_difference=0.3, changed_responses=1), "warning"),
        ("bfloat16", check("packed", max_difference=9.0), "failed"),
        ("float32", check("precision bfloat16", max_difference=9.0), "ok"),
        ("float32", check("precision bfloat16", max_difference=0.1, changed_responses=2), "warning"),
        ("float32", check("backend", skipped="no GPU", num_documents=0), "ok"),
    ],
)
def test_check_status_by_deviation(dtype: str, found: dict[str, Any], status: str) -> None:
    (scored,) = summarize_checks(result(dtype, found))["checks"]
    assert scored["status"] == status
    assert ("skipped: no GPU" in scored["text"]) == bool(found["skipped"])


def test_doctor_findings_per_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="not a run folder"):
        write_findings(tmp_path, summarize_checks(result("float32", check("packed"))))
    (tmp_path / "run.json").write_text("schema: 1\n")
    for changed in (3, 1):
        write_findings(
            tmp_path, summarize_checks(result("float32", check("packed", changed_responses=changed)))
        )
    other = summarize_checks(result("float32", check("packed"))) | {"weights_id": "1" * 16}
    write_findings(tmp_path, other)
    first, second = read_doctor([tmp_path])
    assert (first.changed, second.changed) == (0.1, 0.0)


@pytest.mark.long
def test_doctor_and_bench_appear_in_comparison(
    tiny: Path, tmp_path: Path, suite: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["run", str(suite), "--teacher", str(tiny), "--out", str(run), "--quiet"]) == 0
    assert main(["doctor", str(tiny), "--out", str(run), "--documents", "3"]) == 0
    assert main(["bench", str(tiny), "--contexts", "32", "--batch", "2", "--out", str(run)]) == 0
    printed = capsys.readouterr().out
    assert "padded left" in printed
    assert "first token, ms" in printed
    (found,) = read_doctor([run])
    assert {each.name for each in found.checks} >= {"batched", "packed", "decode", "generation"}
    assert found.weights_id == read_json(run / "run.json")["checkpoints"][0]["weights_id"]
    (cost,) = read_efficiency([run])
    assert (cost.context, cost.batch) == (32, 2)
    tokens, layers, heads, width, float32 = 32, 2, 2, 16, 4
    assert cost.cache_bytes == tokens * layers * 2 * heads * width * float32


def test_doctor_refuses_run_without_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "pocket", "--out", str(tmp_path), "--documents", "2"]) >= 64
    assert "not a run folder" in capsys.readouterr().err
