"""`run.json` states the documents of every benchmark, protocol and context, and the seeds."""

from pathlib import Path
from typing import Any

from evalsuite.evaluation.run_paths import cells_of, read_built, read_requests
from evalsuite.reports.run import read_manifest
from tests.evaluation.runs import evaluate_quietly


def test_plan_counts_the_requests_of_every_cell(crew: Any, tmp_path: Path) -> None:
    suite = tmp_path / "s.yaml"
    suite.write_text(
        "name: s\ntitle: S\nlimit: 3\nbenchmarks:\n"
        "  - {benchmark: pocket_niah_single_1, contexts: [128, 256]}\n"
        "  - {benchmark: pocket_facts, limit: 5}\n"
    )
    run = tmp_path / "run"
    evaluate_quietly(suite=suite, checkpoints=["a"], out=run, phases=("build",))
    plans = {benchmark.name: benchmark for benchmark in read_manifest(run).benchmarks}
    needles = plans["pocket_niah_single_1"].protocols["generation"]
    assert needles.documents == {128: 3, 256: 3}
    assert (needles.contexts, needles.planned(256), needles.planned(512)) == ((128, 256), 3, 0)
    facts = plans["pocket_facts"].protocols
    assert {name: how.documents for name, how in facts.items()} == {"loglikelihood": 5, "generation": 5}
    manifest = read_built(run)
    for cell in cells_of(manifest):
        contexts = [each.context for each in read_requests(run, manifest.checkpoints[0].tokenizer, cell)]
        how = plans[cell.benchmark].protocols[cell.protocol]
        assert {context: contexts.count(context) for context in set(contexts)} == {
            context: how.planned(context) for context in how.contexts
        }
        assert how.seeds == cell.seeds
