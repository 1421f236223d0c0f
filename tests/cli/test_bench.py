"""`evalsuite bench`: measurements of random models, resumed, reported, estimated, and refused."""

import argparse
import json
from pathlib import Path

import pytest
import torch

from evalsuite.cli import main
from evalsuite.cli.commands.bench import context_length
from evalsuite.foundation.efficiency import EfficiencyRow
from evalsuite.models.benchmark.points import Point
from evalsuite.models.inference.torch.benchmark import TorchBenchmark
from evalsuite.reports.records.efficiency import read_efficiency

MIXER = "gated_deltanet+softmax/2"


@pytest.fixture
def shape(tmp_path: Path) -> str:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, '
        '"num_attention_heads": 2, "vocab_size": 50, "max_position_embeddings": 128}'
    )
    return str(folder)


@pytest.mark.long
def test_random_models_are_measured_and_resumed(
    shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = TorchBenchmark.measure

    def limited(self: TorchBenchmark, point: Point) -> EfficiencyRow:
        if point.context == 200:
            raise torch.OutOfMemoryError("simulated")
        return measure(self, point)

    monkeypatch.setattr(TorchBenchmark, "measure", limited)
    run = tmp_path / "run"
    command = ["bench", "--random", "--like", shape, "--mixer", MIXER, "--device", "cpu", "--out", str(run)]
    sizes = ["--contexts", "16", "32", "200", "--peak-contexts", "16", "--also", "transformers"]
    sizes += ["--also-contexts", "16", "--repeats", "1"]
    assert main([*command, *sizes]) == 0
    printed = capsys.readouterr().out
    assert "no GPU: a CPU shows how time and cache grow" in printed
    assert f"tiny, {MIXER}, torch: request of 200 × 1: out of memory (simulated)" in printed
    assert f"tiny, {MIXER} against tiny, teacher, torch:" in printed
    rows = read_efficiency([run])
    assert {(row.engine, row.kind) for row in rows} == {
        ("torch", "request"),
        ("torch", "decode"),
        ("transformers", "request"),
    }
    assert [row.batch for row in rows if row.kind == "decode" and row.context == 16] == [1, 2, 4, 8] * 2
    assert {row.teacher for row in rows if MIXER in row.label} == {rows[0].weights_id}
    stored = (run / "efficiency.jsonl").read_bytes()
    assert main([*command, *sizes]) == 0
    assert ": request of" not in capsys.readouterr().out
    assert (run / "efficiency.jsonl").read_bytes() == stored

    assert main(["bench", "--from", str(run), "--out", str(tmp_path / "page")]) == 0
    page = (tmp_path / "page" / "efficiency.html").read_text()
    assert "Models with random weights: speed and memory depend on shapes alone." in page
    assert "Efficiency of 2 models by context" in page
    table = (tmp_path / "page" / "efficiency.csv").read_text().splitlines()
    assert len(table) == 1 + len(rows)


def test_a_dry_run_measures_nothing(
    shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TorchBenchmark, "measure", lambda *_: pytest.fail("measured"))
    options = [
        "--random",
        "--like",
        shape,
        "--mixer",
        "gla",
        "--device",
        "cpu",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main(["bench", *options, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "tiny, gla" in printed
    assert "about" in printed
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give checkpoints, or --random --like SHAPE"),
        (["pocket", "--random", "--like", "Qwen3-0.6B"], "give checkpoints, or --random --like SHAPE"),
        (["--random"], "give checkpoints, or --random --like SHAPE"),
        (["pocket", "--mixer", "gla"], "--mixer gla: only with --random"),
        (["--random", "--like", "Qwen3-0.7B"], "did you mean 'Qwen3"),
        (["--random", "--like", "Qwen3-0.6B", "--engine", "vllm"], "which --random does not write"),
        (["--from", "absent"], "--from RUN … takes --out DIR"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) >= 64
    assert message in capsys.readouterr().err


def test_runs_without_measurements_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--from", str(tmp_path), "--out", str(tmp_path / "out")]) >= 64
    assert "no measurements; make them with" in capsys.readouterr().err
    (tmp_path / "efficiency.jsonl").write_text(json.dumps({"schema": 1}) + "\n")
    assert main(["bench", "--from", str(tmp_path), "--out", str(tmp_path / "out")]) >= 64
    assert "schema 1, this evalsuite reads 2; delete the file and repeat" in capsys.readouterr().err


def test_contexts_are_tokens_or_thousands() -> None:
    assert [context_length(text) for text in ("512", "2k", "128K")] == [512, 2048, 131072]
    for wrong in ("0", "k", "2m", "-1", "1.5k"):
        with pytest.raises(argparse.ArgumentTypeError, match="is no number of tokens"):
            context_length(wrong)
