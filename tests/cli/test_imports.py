"""`evalsuite compare` and `evalsuite gate` on logs of other harnesses."""

import csv
from pathlib import Path

import pytest

from evalsuite.cli.entry import main
from evalsuite.imported_logs import known_benchmark
from tests.reports.imports.logs import LmEvalLog, task


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A folder with lm-eval's logs of two models, as two calls with one --output_path leave it."""
    for model, seed, skill in (("org/big", 1, 9.0), ("org/small", 2, 2.0)):
        tasks = {"arc_easy": task(seed, 300, skill=skill), "mine": task(seed + 2, 300, skill=skill)}
        LmEvalLog(model, tasks).write(tmp_path / "logs")
    return tmp_path / "logs"


def test_compare_recognises_logs(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report"
    assert main(["compare", str(logs), "--teacher", "big", "--out", str(out)]) == 0
    assert "small" in capsys.readouterr().out
    rows = list(csv.DictReader((out / "scores.csv").open()))
    assert {row["benchmark"] for row in rows} == {"arc_easy", "mine"}
    assert len(list((out / "imported").glob("*/run.json"))) == 2
    # An imported log is a run folder: it can be compared again.
    again = [str(path) for path in sorted((out / "imported").glob("*"))]
    assert main(["compare", *again, "--teacher", "big", "--out", str(tmp_path / "again")]) == 0


def test_the_gate_reads_logs(logs: Path, tmp_path: Path) -> None:
    options = ["--teacher", "big", "--out", str(tmp_path / "verdict")]
    assert main(["gate", str(logs), "--min-recovery", "0.9", *options]) == 1
    assert main(["gate", str(logs), "--min-recovery", "0.05", *options]) == 0
    named = ["gate", "--import", f"lm-eval:{logs}", "--benchmark", "mine"]
    assert main([*named, "--min-recovery", "0.05", *options]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gate", "LOGS", "--min-recovery", "1"], "state with --out where to import it"),
        (["gate", "--import", "LOGS", "--min-recovery", "1"], "must be FORMAT:PATH"),
        (
            ["gate", "--import", "lmeval:LOGS", "--min-recovery", "1"],
            "unknown importer 'lmeval'; did you mean",
        ),
        (["gate", "--min-recovery", "1"], "no runs given"),
        (["compare", "--import", "inspect:LOGS", "--out", "OUT"], "no log of Inspect here"),
        (
            ["compare", "LOGS", "--benchmark", "mime", "--out", "OUT"],
            "--benchmark mime: no imported log has it",
        ),
        (
            ["compare", "LOGS", "--teacher", "bog", "--out", "OUT"],
            "no run has a checkpoint 'bog' (--teacher)",
        ),
    ],
)
def test_refusals_name_the_way_out(
    logs: Path,
    tmp_path: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"LOGS": str(logs), "OUT": str(tmp_path / "out")}
    given = [word.replace("LOGS", places["LOGS"]) if word != "OUT" else places["OUT"] for word in arguments]
    assert main(given) >= 64
    assert message in capsys.readouterr().err


def test_a_known_benchmark_is_found_by_name() -> None:
    arc = known_benchmark("arc_easy")
    assert arc is not None
    assert (arc.category, arc.metrics["loglikelihood"]) == ("knowledge", "acc")
    assert known_benchmark("mine") is None


def test_a_known_benchmark_has_the_chance_level_of_each_protocol() -> None:
    found = known_benchmark("arc_easy_text")
    assert found is not None
    assert found.chances == {"loglikelihood": "per_document", "generation": 0.25}


def test_what_is_neither_a_run_nor_a_log_is_described(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["compare", str(logs), "--teacher", "big", "--out", out]) == 0
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("later")
    for path, message in (
        (tmp_path / "absent", "absent: not a run folder (no run.json), and no log of "),
        (tmp_path / "absent", "(there is no such file or folder)"),
        (tmp_path / "notes", "(found todo.txt)"),
        (tmp_path / "out", "but run folders lie below it; pass "),
    ):
        for command in (
            ["gate", "--min-recovery", "0.9"],
            ["compare"],
            ["export", "--format", "model-index"],
        ):
            if command[0] == "gate" and path == tmp_path / "out":
                continue  # a folder that compare wrote is gated as it is
            capsys.readouterr()
            assert main([command[0], str(path), *command[1:], "--out", str(tmp_path / "other")]) == 64
            assert message in capsys.readouterr().err


def test_a_log_that_is_left_out_of_a_gate_is_named(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A student whose results were emptied used to vanish, and the gate passed."""
    (results,) = logs.glob("*small/results_*.json")
    results.write_bytes(b"")
    gate = ["gate", str(logs), "--teacher", "big", "--min-recovery", "0.05", "--out", str(tmp_path / "out")]
    assert main(gate) == 65
    assert str(results) in capsys.readouterr().err


def test_two_settings_of_one_model_are_two_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = tmp_path / "logs"
    LmEvalLog("org/t", {"arc_easy": task(1, 300, skill=9.0), "piqa": task(2, 300, skill=9.0)}).write(logs)
    for name, settings in (("arc_easy", {}), ("piqa", {"lora_local_path": "./adapter"})):
        log = LmEvalLog("org/base", {name: task(3, 300, skill=5.0)})
        log.results["config"]["model_args"] |= settings | {"api_key": "sk-0123456789abcdefghij"}
        log.write(logs / name)
    out = tmp_path / "out"
    assert main(["gate", str(logs), "--teacher", "t", "--min-recovery", "0.1", "--out", str(out)]) == 3
    shown = capsys.readouterr().out
    assert "base (lora_local_path=./adapter)" in shown
    assert not [path for path in out.rglob("*") if path.is_file() and b"sk-0123456789" in path.read_bytes()]
