"""Scorers: the registry, what a scorer's version covers, and refusals."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evalsuite.evaluation.scorer_versions import scorer_version
from evalsuite.foundation import ConfigError, MissingDependencyError
from evalsuite.models.checkpoints.fingerprint import source_hash
from evalsuite.protocols.scorers import SCORERS, Scorer, ScorerOutput, as_scorer, recall
from evalsuite.tasks.benchmark import all_benchmarks, load_benchmark


def module(folder: Path, name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Write a module and import it afresh."""
    (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()
    source_hash.cache_clear()
    return importlib.import_module(name)


def test_every_benchmark_names_a_registered_scorer() -> None:
    named = {each.generation.scorer for each in all_benchmarks() if each.generation is not None} - {None}
    assert named <= set(SCORERS.names())
    assert len(named) > 5


def test_version_follows_code_but_not_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import {helper}\n\ndef score(row, response):\n    return {helper}.check(response)\n"
    helper = module(tmp_path, "scorer_helper_a", "def check(text):\n    return text\n", monkeypatch)
    first = module(tmp_path, "scorer_a", source.format(helper="scorer_helper_a"), monkeypatch)
    before = Scorer(first.score, modules=(helper,)).version
    (tmp_path / "scorer_helper_a.py").write_text("# A comment.\ndef check(text):\n    return text\n")
    source_hash.cache_clear()
    assert Scorer(first.score, modules=(helper,)).version == before
    (tmp_path / "scorer_helper_a.py").write_text("def check(text):\n    return text.lower()\n")
    source_hash.cache_clear()
    assert Scorer(first.score, modules=(helper,)).version != before
    assert Scorer(first.score).version != before


def test_version_of_a_benchmark_follows_its_scorer_only(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, fda = load_benchmark("pocket_facts"), load_benchmark("fda")
    before = [scorer_version(each, "generation").version for each in (facts, fda)]
    monkeypatch.setitem(SCORERS._items, "pocket", Scorer(SCORERS["pocket"].function, modules=(recall,)))
    after = [scorer_version(each, "generation").version for each in (facts, fda)]
    assert before[0] != after[0]
    assert before[1] == after[1]


def test_a_package_that_is_missing_is_named_before_inference() -> None:
    scorer = Scorer(recall.contains, packages={"no_such_package": "no-such-package==1"})
    with pytest.raises(MissingDependencyError, match=r"`pip install no-such-package==1`"):
        scorer.check_packages("scorer 'x'")
    SCORERS["contains"].check_packages("scorer 'contains'")


def test_an_output_of_another_type_is_refused() -> None:
    def number(row: Any, response: str) -> Any:
        return 1.0

    with pytest.raises(ConfigError, match=r"number returned float; it must return ScorerOutput"):
        Scorer(number)({}, "x")


def test_a_function_without_a_file_has_no_version() -> None:
    with pytest.raises(ConfigError, match="define it in a module"):
        _ = Scorer(len).version  # type: ignore[arg-type]


def test_a_plugin_gives_a_scorer_or_its_function() -> None:
    def score(row: Any, response: str) -> ScorerOutput:
        return ScorerOutput({"accuracy": 1.0}, response, "")

    assert as_scorer(score) == as_scorer(Scorer(score)) == Scorer(score)
    with pytest.raises(TypeError, match="neither a Scorer nor a function"):
        as_scorer(3)
    with pytest.raises(TypeError):
        as_scorer(lambda response: response)
