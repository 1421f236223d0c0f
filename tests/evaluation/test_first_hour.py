"""The first hour, as the tutorial types it: one's own questions, a benchmark, a checkpoint, a verdict."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from evalsuite.cli.entry import main
from evalsuite.reports.run import read_manifest
from tests.docs.page_code import ROOT, PageCode

MAX_COMMANDS = 8


def test_own_questions_are_evaluated_compared_and_gated(
    make_llama: Callable[[Path, int], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = PageCode(ROOT / "docs" / "tutorial.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVALSUITE_CACHE", str(tmp_path / "cache"))
    # Each run would import the harnesses in a process of its own, which changes nothing that it finds.
    monkeypatch.setattr("evalsuite.evaluation.phases.pays_off", lambda config: False)
    for seed, name in enumerate(("gla", "gated_deltanet")):
        make_llama(tmp_path / "runs" / "demo" / "students" / name, seed)
    assert len(page.commands) <= MAX_COMMANDS
    run, printed, codes = Path("runs/mine"), [], []
    for line in page.commands:
        program, *words = shlex.split(line)
        assert program == "evalsuite"
        codes.append(main(words))
        printed.append(capsys.readouterr().out)
    validated, first, benchmark, checkpoint, compared, gated = printed
    assert codes == [0, 0, 0, 0, 0, 1]  # Random weights do not recover the teacher.
    assert "2 questions with 4 choices, loglikelihood and generation" in validated
    # Two questions under two protocols; then 60 documents, of which two have the same log-likelihood requests
    # as the questions; then what a third checkpoint needs.
    assert "computed responses: pocket 4, gla 4" in first
    assert "computed responses: pocket 118, gla 118" in benchmark
    assert "computed responses: pocket 0, gla 0, gated_deltanet 122" in checkpoint
    manifest = read_manifest(run)
    assert [each.name for each in manifest.benchmarks] == ["questions", "pocket_facts"]
    assert all(set(each.protocols) == {"loglikelihood", "generation"} for each in manifest.benchmarks)
    assert (run / "report" / "index.html").is_file()
    assert "index.html" in compared
    report = json.loads((run / "report" / "report.json").read_text())
    assert report
    assert "gla" in gated
