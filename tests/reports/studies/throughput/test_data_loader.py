"""The study of the data loader, small: its tables, and what it calls waiting."""

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest

from evalsuite.reports.studies.throughput import data_loader
from evalsuite.reports.studies.throughput.data_loader import main, share_of_waiting


def read(path: Path) -> list[dict[str, float]]:
    with open(path, newline="") as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def test_command_writes_both_tables(tmp_path: Path) -> None:
    options = "--workers 0 --documents 200 --steps 2 --rate 1e6 --rows 2000 20000"
    assert main(["--out", str(tmp_path), *options.split()]) in (0, 1)
    (loading,) = read(tmp_path / "data.csv")
    assert loading["tokens_per_second"] > 1000
    assert loading["ratio"] == 1
    assert loading["trainer_seconds"] > 0
    assert 0 <= loading["waiting"] <= 1
    lines = read(tmp_path / "json_lines.csv")
    assert [row["rows"] for row in lines] == [2000, 20000]
    assert all(row["microseconds_per_row"] > 0 for row in lines)


def test_waiting_is_what_exceeds_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(data_loader, "time", SimpleNamespace(perf_counter=lambda: now, sleep=sleep))

    def batches():
        for _ in range(5):
            sleep(0.03)
            yield SimpleNamespace(tokens=100)

    # The source is not read ahead of here: every step of 0.01 s follows a wait of 0.03 s.
    assert share_of_waiting(batches(), rate=10_000) == pytest.approx(0.75)  # type: ignore[arg-type]
