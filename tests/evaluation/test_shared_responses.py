"""Runs in different folders share responses through the user's cache, never across fingerprints."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from evalsuite.cli.entry import main
from evalsuite.evaluation.run import Summary
from evalsuite.foundation.cache_folder import cache_folder
from tests.evaluation.runs import evaluate_quietly
from tests.reports.score_edits import rows_by_cell


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("EVALSUITE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "responses"


def run(out: Path, suite: str, *checkpoints: str, **options: Any) -> Summary:
    return evaluate_quietly(suite=suite, checkpoints=checkpoints or ("a",), out=out, **options)


def test_another_folder_costs_exactly_its_new_requests(crew: Any, cache: Path, tmp_path: Path) -> None:
    run(tmp_path / "one", "pocket_facts:limit=4")
    assert crew.computed == 8
    summary = run(tmp_path / "two", "pocket_facts:limit=6,pocket_instructions:limit=2")
    assert crew.computed == 8 + 4 + 2
    assert (summary.computed, summary.shared) == ({"a": 6}, {"a": 8})
    assert "responses of earlier runs (evalsuite cache): a 8" in str(summary)
    run(tmp_path / "fresh", "pocket_facts:limit=6,pocket_instructions:limit=2", cache=False)
    here, there = (
        {path.name: path.read_bytes() for path in (tmp_path / name / "scores").iterdir()}
        for name in ("two", "fresh")
    )
    assert here == there


def test_a_run_keeps_what_it_was_given(crew: Any, cache: Path, tmp_path: Path) -> None:
    run(tmp_path / "one", "pocket_facts:limit=4")
    run(tmp_path / "two", "pocket_facts:limit=4")
    for log in cache.iterdir():
        log.unlink()
    assert run(tmp_path / "two", "pocket_facts:limit=4").computed == {"a": 0}
    assert len(rows_by_cell(tmp_path / "two")["pocket_facts.generation"]) == 4


def test_the_cache_is_off_by_one_option(crew: Any, cache: Path, tmp_path: Path) -> None:
    run(tmp_path / "one", "pocket_facts:limit=4", cache=False)
    assert not cache.exists()
    run(tmp_path / "two", "pocket_facts:limit=4")
    run(tmp_path / "three", "pocket_facts:limit=4", cache=False)
    assert crew.computed == 3 * 8


def test_other_weights_are_never_served(crew: Any, cache: Path, tmp_path: Path) -> None:
    run(tmp_path / "one", "pocket_facts:limit=4", "a")
    assert run(tmp_path / "two", "pocket_facts:limit=4", "b").computed == {"b": 8}
    ours, theirs = (
        {path.name.split(".")[0] for path in (tmp_path / name / "responses").iterdir()}
        for name in ("one", "two")
    )
    assert ours.isdisjoint(theirs)


def test_a_damaged_cache_costs_only_what_it_lacks(crew: Any, cache: Path, tmp_path: Path) -> None:
    run(tmp_path / "one", "pocket_facts:limit=4")
    for log in cache.iterdir():
        lines = log.read_text().splitlines()
        row = json.loads(lines[1])
        twice = json.dumps(row | {"response": json.loads(lines[0])["response"]})
        log.write_text("\n".join(["nonsense", '{"key": 1}', "[]", *lines[1:], twice, lines[0][:20]]))
    before = crew.computed
    run(tmp_path / "two", "pocket_facts:limit=4")
    assert crew.computed == before + 2
    one, two = (rows_by_cell(tmp_path / name) for name in ("one", "two"))
    assert one == two


def test_a_cache_that_cannot_be_written_stops_no_run(
    crew: Any, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.parent.mkdir()
    cache.write_text("a file")
    assert run(tmp_path / "one", "pocket_facts:limit=4").computed == {"a": 8}
    assert "responses of this run are not shared with others" in capsys.readouterr().err


def test_the_command_shows_prunes_and_clears(
    crew: Any, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "one", "pocket_facts:limit=4", "a", "b")
    assert main(["cache"]) == 0
    assert f"{cache}: 0.0 MiB of responses, 2 fingerprints" in capsys.readouterr().out
    old = next(cache.glob("*.score.jsonl"))
    (cache / "notes.jsonl").write_text("not ours")
    os.utime(old, (time.time() - 40 * 86400,) * 2)
    main(["cache", "--prune", "30"])
    assert not old.exists()
    assert len(list(cache.iterdir())) == 4
    main(["cache", "--clear"])
    assert [path.name for path in cache.iterdir()] == ["notes.jsonl"]
    assert main(["cache", "--prune", "-1"]) == 64


def test_the_folder_is_the_platforms(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cache_folder() is None
    assert main(["cache"]) == 0
    assert "EVALSUITE_CACHE is empty" in capsys.readouterr().out
    monkeypatch.delenv("EVALSUITE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/mine")
    assert cache_folder() == Path("/var/mine/evalsuite")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/home/someone/.cache/evalsuite")
