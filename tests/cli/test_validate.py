"""`evalsuite validate`: what a file is, and what is wrong with it."""

import json
from pathlib import Path

import pytest

from evalsuite.cli.entry import main
from evalsuite.distill.recipe.recipe import RECIPES
from evalsuite.tasks.benchmark import FOLDER as BENCHMARKS
from evalsuite.tasks.suite import FOLDER as SUITES
from evalsuite.validation import KINDS, validate

EXAMPLES = Path(__file__).parents[2] / "reports" / "examples"
BENCHMARK = """name: mine
title: Mine
category: knowledge
license: CC0-1.0
citation: none
source: {dataset: me/mine, split: test}
loglikelihood: {task: evalsuite/choices.yaml, metric: acc}
"""
GATE = "rules:\n  - {metric: recovery, min: 0.9}\n"


@pytest.mark.parametrize(
    ("path", "what"),
    [
        (
            BENCHMARKS / "arc_easy.yaml",
            "benchmark, valid: documents of allenai/ai2_arc, loglikelihood and generation",
        ),
        (
            BENCHMARKS / "pocket_facts.yaml",
            "benchmark, valid: 200 generated documents, loglikelihood and generation",
        ),
        (SUITES / "quick.yaml", "suite, valid: 8 benchmarks (5 under loglikelihood, 5 under generation)"),
        (RECIPES / "pocket.yaml", "recipe, valid: "),
        (EXAMPLES / "demo.yaml", "gate policy, valid: "),
    ],
)
def test_what_ships_is_recognised(path: Path, what: str) -> None:
    assert validate(str(path)).startswith(f"{path}: {what}")


@pytest.mark.parametrize(
    ("name", "content", "code", "message"),
    [
        (
            "q.jsonl",
            json.dumps({"question": "?", "answer": "x"}),
            0,
            "q.jsonl: questions, valid: 1 question with",
        ),
        (
            "q.csv",
            "question,A,B,answer\n?,x,y,A\n?,x,y,C\n",
            65,
            "q.csv, line 3: the answer 'C' is no choice",
        ),
        (
            "run.yaml",
            "suite: quick\ncheckpoints: [pocket]\nout: run\n",
            0,
            "run configuration, valid: suite quick",
        ),
        ("run.yaml", "suite: quik\ncheckpoints: [pocket]\nout: run\n", 64, "'quik'; did you mean 'quick'?"),
        ("rule.yaml", "min_documents: 20\n", 0, "admission rule, valid: at least 20 documents"),
        (
            "b.yaml",
            BENCHMARK.replace("title", "titel"),
            64,
            "b.yaml: unknown key 'titel'; did you mean 'title'?",
        ),
        ("b.yaml", BENCHMARK.replace("choices", "choice"), 64, "no lm-eval task file evalsuite/choice.yaml"),
        (
            "b.yaml",
            BENCHMARK.replace("test}", "test, transform: span}"),
            64,
            "'source.transform': unknown transform 'span'; did you mean 'span_choices'?",
        ),
        ("b.yaml", "name: own\ntitle: Own\nsource: {file: none.jsonl}\n", 64, "none.jsonl: no such file"),
        (
            "s.yaml",
            "name: s\ntitle: S\nbenchmark: [piqa]\n",
            64,
            "s.yaml: unknown key 'benchmark'; did you mean",
        ),
        (
            "s.yaml",
            "name: s\ntitle: S\nbenchmarks: [piqua]\n",
            64,
            "s.yaml: benchmarks: unknown benchmark 'piqua'",
        ),
        ("g.yaml", GATE, 0, "g.yaml: gate policy, valid: 1 rule"),
        ("g.yaml", GATE.replace("rules", "ruls"), 64, "g.yaml: unknown key 'ruls'; did you mean 'rules'?"),
        ("g.yaml", GATE.replace("recovery", "recovry"), 64, "'rules.0.metric' = 'recovry': "),
        ("r.yaml", "name: r\nteacher: pocket\nstages: []\n", 64, "r.yaml: 'data' is required"),
        (
            "x.yaml",
            "colour: red\n",
            64,
            "x.yaml: no known kind of file; its keys are colour; known: benchmark (comp",
        ),
        ("x.yaml", "", 64, "x.yaml: expected a mapping of keys to values"),
        ("x.yaml", "a: [", 64, "x.yaml: not YAML"),
        ("x.txt", "name: x", 64, "x.txt: no known kind of file"),
    ],
)
def test_a_file_is_described_or_refused(
    name: str,
    content: str,
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(content)
    assert main(["validate", name]) == code
    captured = capsys.readouterr()
    assert message in (captured.err if code else captured.out)


def test_every_file_that_is_wrong_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(GATE)
    bad.write_text(GATE.replace("min", "minn"))
    assert main(["validate", str(bad), str(good), str(tmp_path / "none.csv")]) == 64
    captured = capsys.readouterr()
    assert f"{good}: gate policy, valid" in captured.out
    assert "bad.yaml: unknown key 'rules.0.minn'" in captured.err
    assert "none.csv: no such file" in captured.err


def test_no_mark_is_a_key_of_two_kinds_that_would_tie() -> None:
    for name, kind in KINDS.items():
        assert kind.marks <= kind.keys, name
