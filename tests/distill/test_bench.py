"""The speed bench runs the trainer's own steps, and its naive step computes the same loss."""

import json

import pytest

from evalsuite.distill import bench


def test_the_bench_times_every_step_and_all_compute_one_loss(tmp_path, capsys):
    options = ["--tiny", "--rows", "4", "--length", "32", "--steps", "1", "--device", "cpu"]
    bench.main([*options, "--out", str(tmp_path)])
    timings = json.loads((tmp_path / "timings.json").read_text())["timings"]
    naive, whole, quarter = timings[:3]
    # Three steps and one more from the same start, on the same tokens.
    assert whole["loss"] == pytest.approx(quarter["loss"], rel=1e-3)
    assert naive["loss"] == pytest.approx(whole["loss"], rel=0.5)
    assert [at["students"] for at in timings] == [1, 1, 1, 1, 1, 1, 1, 4]
    assert all(at["tokens_per_second"] > 0 for at in timings)
    assert (tmp_path / "table.md").read_text().strip() in capsys.readouterr().out
