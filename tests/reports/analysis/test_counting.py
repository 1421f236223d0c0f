"""Requests count once: a copy of a benchmark, or of a part of it, changes no number of a report."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from evalsuite.foundation.strict import parse
from evalsuite.reports import Policy, run_gate
from evalsuite.reports.analysis.counting import holm_once
from evalsuite.reports.analysis.result_tensor import load_result_tensor
from evalsuite.reports.comparison import compare
from evalsuite.reports.exports.report_json import report_json
from evalsuite.reports.json_values import to_json
from evalsuite.reports.measures.agreement import agreements, tolerances
from evalsuite.reports.measures.distances.rows import answer_distance, distance_rows
from evalsuite.reports.measures.letters import letters
from evalsuite.reports.measures.recall import recall
from evalsuite.reports.measures.scaling import fitted
from evalsuite.reports.records.score_files import score_path
from evalsuite.reports.report import Report, build_report
from evalsuite.reports.run import read_manifest, write_manifest
from evalsuite.reports.statistics.hypothesis_tests import holm
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run
from tests.reports.measures.test_distances import frame_of
from tests.reports.score_edits import Row, all_rows, write_unchecked

LABELS = ("teacher", "better", "worse")


def with_copy(
    run: Path,
    original: str,
    name: str,
    *,
    documents: int | None = None,
    own: int = 0,
    protocols: tuple[str, ...] = ("loglikelihood", "generation"),
    **changed: Any,
) -> Path:
    """Add `documents` requests of a benchmark under another name, the first `own` with new prompts."""
    plan = read_manifest(run)
    known = next(each for each in plan.benchmarks if each.name == original)
    hows = {}
    for protocol in protocols:
        rows = all_rows(run, original, protocol)
        kept = sorted({row["doc_id"] for row in rows})[:documents]
        new = set(kept[:own])
        hows[protocol] = replace(known.protocols[protocol], documents=len(kept))
        by_file: dict[str, list[Row]] = {}
        for row in rows:
            if row["doc_id"] in kept:
                prompt = row["prompt_hash"][::-1] + "a" if row["doc_id"] in new else row["prompt_hash"]
                by_file.setdefault(row["fingerprint"], []).append(
                    row | {"benchmark": name, "prompt_hash": prompt[:16]}
                )
        for fingerprint, members in by_file.items():
            write_unchecked(score_path(run, name, protocol, fingerprint), members)
    copy = replace(known, name=name, title=name.upper(), protocols=hows, **changed)
    write_manifest(run, replace(plan, benchmarks=(*plan.benchmarks, copy)))
    return run


def make(run: Path, documents: int = 120) -> Path:
    """Two benchmarks, of which students lose more on `words`."""
    truths = {"teacher": (0.8, 0.7), "better": (0.6, 0.66), "worse": (0.45, 0.6)}
    benchmarks = [
        SyntheticBenchmark("words", "WORDS", "language_modeling", documents),
        SyntheticBenchmark("facts", "FACTS", "knowledge", documents),
    ]
    models = [
        SyntheticCheckpoint(
            label,
            lambda name, p, c, label=label: truths[label][name == "facts"] - 0.1 * (p == "generation"),
            "teacher" if label == "teacher" else "student",
        )
        for label in LABELS
    ]
    return make_run(run, benchmarks, models)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return build_report([make(tmp_path_factory.mktemp("plain"))])


def numbers(report: Report, without: str) -> dict[str, Any]:
    """Every aggregate of a report, without what is said of one benchmark alone."""

    def rows(found: Any) -> list[Any]:
        return [
            to_json(
                replace(
                    row, **{f: type(getattr(row, f))() for f in ("missing", "counts_with") if hasattr(row, f)}
                )
            )
            for row in found
            if without not in (getattr(row, "benchmark", ""), getattr(row, "scope", ""))
        ]

    parts = ("averages", "drops", "gaps", "pairs", "scores")
    found = {name: rows(getattr(report, name)) for name in (*parts, "informative", "replicates")}
    found |= {compute.__name__: rows(report.of(compute)) for compute in (tolerances, recall, letters)}
    return found | {
        "agreements": rows(report.of(agreements).by_scope),
        "agreements_by_benchmark": rows(report.of(agreements).by_benchmark),
        "scaling": rows(report.of(fitted)[0]),
        "documents": report.documents,
        "agreement": to_json(report.agreement),
    }


@pytest.mark.parametrize(
    ("documents", "category"), [(None, "language_modeling"), (40, "knowledge"), (7, "reasoning")]
)
def test_copy_of_a_benchmark_changes_no_number(
    tmp_path: Path, plain: Report, documents: int | None, category: str
) -> None:
    run = with_copy(make(tmp_path), "words", "xagain", documents=documents, category=category)
    report = build_report([run])
    found, expected = numbers(report, "xagain"), numbers(plain, "xagain")
    if category == "reasoning":
        # A category of the copy alone has its score.
        found["averages"] = [row for row in found["averages"] if row["scope"] != "reasoning"]
        found["agreements"] = [row for row in found["agreements"] if row["scope"] != "reasoning"]
    if category == "knowledge":
        # There it is the only benchmark with these requests, so it counts.
        assert {r.documents for r in report.averages if r.scope == "knowledge"} != {120}
        for part in ("averages", "agreements"):
            for rows in (found, expected):
                rows[part] = [row for row in rows[part] if row["scope"] != "knowledge"]
    assert found == expected


def test_outputs_name_what_counts_with_what(tmp_path: Path) -> None:
    run = with_copy(make(tmp_path / "run"), "words", "xagain", documents=60)
    made = compare([run], tmp_path / "out", samples=False)
    sentence = (
        "XAGAIN: 60 of its 60 requests under log-likelihood are requests of WORDS. Where both would count, "
        "the two are one benchmark"
    )
    page = (tmp_path / "out" / "index.html").read_text()
    assert "on the same 240 documents of 2 informative benchmarks" in page
    assert "XAGAIN has requests of WORDS, and counts with it." in page
    for name in ("index.html", "report.md"):
        assert sentence in (tmp_path / "out" / name).read_text()
    assert sentence in made.text
    rows = list(csv.DictReader((tmp_path / "out" / "scores.csv").open()))
    assert {(row["benchmark"], row["counts_with"]) for row in rows} == {
        ("words", ""),
        ("facts", ""),
        ("xagain", "words"),
    }
    leaderboard = list(csv.DictReader((tmp_path / "out" / "leaderboard.csv").open()))
    assert {row["counted_with"] for row in leaderboard if row["scope"] == "all"} == {"xagain=words"}
    found = report_json(made.report)
    assert [
        (each["benchmark"], each["other"], each["protocol"], each["documents"], each["counts_once"])
        for each in found["shared_requests"]
    ] == [
        ("xagain", "words", "loglikelihood", 60, True),
        ("xagain", "words", "generation", 60, True),
    ]
    assert {(row["benchmark"], row["counts_with"]) for row in found["informative"]} == {
        ("words", ""),
        ("facts", ""),
        ("xagain", "words"),
    }


def test_order_of_the_plan_changes_no_number(tmp_path: Path) -> None:
    """Of two benchmarks with the same requests but other metrics, one counts, whichever comes first."""
    run = with_copy(make(tmp_path), "words", "a_copy")
    found = build_report([run]).average(1, "loglikelihood")
    plan = read_manifest(run)
    write_manifest(run, replace(plan, benchmarks=plan.benchmarks[::-1]))
    turned = build_report([run]).average(1, "loglikelihood")
    assert set(found.benchmarks) == set(turned.benchmarks) == {"a_copy", "facts"}
    assert (found.recovery, found.documents) == (turned.recovery, turned.documents)


def test_few_shared_requests_are_named_and_both_count(tmp_path: Path) -> None:
    run = with_copy(make(tmp_path), "words", "xagain", documents=100, own=60)
    report = build_report([run])
    assert any("XAGAIN: 40 of its 100 requests" in w and "both count" in w for w in report.warnings)
    assert report.average(1, "loglikelihood").benchmarks == ("words", "facts", "xagain")
    once = with_copy(make(tmp_path / "b"), "words", "xagain", documents=100, own=50)
    assert build_report([once]).average(1, "loglikelihood").benchmarks == ("words", "facts")


def test_copy_counts_alone_where_the_other_does_not(tmp_path: Path) -> None:
    run = make(tmp_path)
    with_copy(run, "words", "xagain", documents=60)
    plan = read_manifest(run)
    barred = [
        replace(each, not_leading="it is trained on") if each.name == "words" else each
        for each in plan.benchmarks
    ]
    write_manifest(run, replace(plan, benchmarks=tuple(barred)))
    report = build_report([run])
    row = report.leading_average(1, "loglikelihood")
    assert (row.scope, row.benchmarks, row.documents) == ("informative", ("facts", "xagain"), 180)
    assert {row.counts_with for row in report.informative} == {""}


def test_copy_that_a_student_lacks_takes_no_rank(tmp_path: Path) -> None:
    run = with_copy(make(tmp_path), "words", "xagain", documents=60)
    weights = read_manifest(run).checkpoints[1].weights_id
    score_path(run, "xagain", "loglikelihood", weights[::-1]).unlink()
    row = build_report([run]).average(1, "loglikelihood")
    assert (row.missing, row.rank) == ((), 1)


def policy(*rules: dict[str, Any]) -> Policy:
    return parse({"rules": list(rules)}, Policy, "policy")


RULES = (
    {"metric": "recovery", "min": 0.9},
    {"metric": "recovery", "min": 0.9, "scope": "informative", "name": "informative"},
    {"metric": "capped_recovery", "min": 0.9},
    {"metric": "chance_normalized_recovery", "min": 0.9},
    {"metric": "score", "min": 0.5},
    {"metric": "drop", "max": 5},
    {"metric": "gap", "max": 5},
    {"metric": "retained", "min": 0.9},
    {"metric": "agreement", "min": 0.9},
)


def test_gate_counts_requests_once(tmp_path: Path) -> None:
    run = make(tmp_path)
    before = run_gate([run], policy(*RULES))
    after = run_gate([with_copy(run, "words", "xagain", documents=60)], policy(*RULES))
    strip = [[replace(r, look_at=()) for r in verdict.results] for verdict in (before, after)]
    assert strip[0] == strip[1]
    assert "XAGAIN: 60 of its 60 requests" in after.text


def test_regression_counts_requests_once(tmp_path: Path) -> None:
    old = with_copy(make(tmp_path / "old"), "words", "xagain", documents=60)
    new = with_copy(make(tmp_path / "new", documents=120), "words", "xagain", documents=60)
    rule = {"metric": "regression", "max": 1, "baseline": str(old), "protocol": "loglikelihood"}
    assert {result.documents for result in run_gate([new], policy(rule)).results} == {240}


def test_distances_count_requests_once(tmp_path: Path) -> None:
    run = with_copy(make(tmp_path), "words", "xagain", documents=60)
    tensor = load_result_tensor([run])
    ids = [each.weights_id for each in tensor.checkpoints]
    frame = pd.concat(
        frame_of(weights_id=ids[1], teacher=ids[0], source=source, doc_id=[str(i)], kl=kl * (1 + i))
        for source, kl in (("words", 8.0), ("facts", 1.0), ("xagain", 8.0))
        for i in range(3)
    )
    rows = {(row.kind, row.group): row for row in distance_rows(tensor, frame)}
    assert (rows["all", "all"].kl.point, rows["all", "all"].documents) == (9 * 2 / 2 / 4, 6)
    assert {group for kind, group in rows if kind == "source"} == {"words", "facts", "xagain"}
    found = answer_distance(tensor, frame, 1)
    assert found is not None
    assert found[0].point == rows["all", "all"].kl.point


def test_merged_hypotheses_enlarge_no_family() -> None:
    rng = np.random.default_rng(3)
    own = rng.uniform(0, 0.1, 20).tolist()
    found = holm_once([*own, own[4], 0.5], {20: 4, 21: 7})
    assert found[:20] == holm(own)
    assert found[20] == found[4]
    assert found[21] == holm([*own[:7], 0.5, *own[8:]])[7]
