"""What one types in place of a suite: benchmarks, suites and files together, with options."""

from pathlib import Path

import pytest

from evalsuite.evaluation.inputs import _suite_name
from evalsuite.foundation import ConfigError
from evalsuite.tasks.requested import Requested, parse_requested, requested_name
from evalsuite.tasks.suite import load_suite, resolve, suite_folder

BENCHMARK = """name: mine
title: Mine
category: knowledge
license: CC0-1.0
citation: none
source: {dataset: me/mine, split: test}
loglikelihood: {task: evalsuite/choices.yaml, metric: acc}
"""


def cells(text: str) -> dict[tuple[str, str], tuple[int | None, int]]:
    """(benchmark, protocol) → documents and num_fewshot."""
    return {
        (benchmark.name, protocol): (entry.limits.get(protocol, entry.limit), entry.num_fewshot[protocol])
        for entry, benchmark in resolve(load_suite(text), near=suite_folder(text))
        for protocol in entry.protocols
    }


def test_a_benchmark_stands_for_a_suite_of_it() -> None:
    suite = load_suite("lambada_openai")
    assert suite.name == suite.title == "lambada_openai"
    assert cells("lambada_openai") == {("lambada_openai", "loglikelihood"): (None, 0)}


def test_names_with_options_are_one_suite() -> None:
    assert cells("lambada_openai,gsm8k:0shot,pocket_facts:loglikelihood:limit=20") == {
        ("lambada_openai", "loglikelihood"): (None, 0),
        ("gsm8k", "generation"): (None, 0),
        ("pocket_facts", "loglikelihood"): (20, 0),
    }


def test_a_list_can_be_long() -> None:
    names = [
        f"longbench_{name}" for name in ("2wikimqa", "dureader", "gov_report", "hotpotqa", "lcc", "lsht")
    ]
    text = ",".join(f"{name}:generation:limit=100" for name in [*names, "gsm8k", "ifeval"])
    assert len(text) > 255
    assert {name for name, _ in cells(text)} == {*names, "gsm8k", "ifeval"}


def test_options_of_a_suite_are_those_of_its_benchmarks() -> None:
    plain, changed = cells("pocket"), cells("pocket:loglikelihood:limit=7")
    assert set(changed) == {(name, protocol) for name, protocol in plain if protocol == "loglikelihood"}
    assert {limit for limit, _ in changed.values()} == {7}


def test_a_suite_among_others_keeps_its_settings_and_a_benchmark_by_name_its_own() -> None:
    quick, both = cells("quick"), cells("hellaswag:loglikelihood:limit=9,quick")
    assert both == quick | {("hellaswag", "loglikelihood"): (9, 0)}
    assert cells("quick,hellaswag:loglikelihood:limit=9") == both
    sampling = {entry.benchmark: entry.sampling for entry in load_suite("quick,winogrande").benchmarks}
    assert sampling["gsm8k"] is not None
    assert sampling["gsm8k"].max_new_tokens == 256
    assert sampling["winogrande"] is None


@pytest.mark.parametrize("text", ["mine.yaml", "./mine.yaml:limit=3", "arc_easy,mine.yaml", "own.yaml,piqa"])
def test_files_of_benchmarks_and_suites_are_found_from_here(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(BENCHMARK)
    Path("own.yaml").write_text("name: own\ntitle: Own\nbenchmarks: [mine.yaml]\n")
    assert ("mine", "loglikelihood") in cells(text)
    assert _suite_name(text) == load_suite(text).name
    assert str(tmp_path) not in load_suite(text).name


def test_a_host_that_only_runs_inference_knows_the_name() -> None:
    for text in ("quick", "arc_easy", "arc_easy,gsm8k:0shot", "quick:loglikelihood:limit=2"):
        assert _suite_name(text) == requested_name(text) == load_suite(text).name
    assert requested_name("arc_easy, gsm8k:0shot") == "arc_easy+gsm8k-0shot"
    assert parse_requested("gsm8k:0shot") == [Requested("gsm8k", num_fewshot=0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arc_esay", "unknown suite or benchmark 'arc_esay'; did you mean 'arc_easy'"),
        ("arc_easy,quik", "unknown suite or benchmark 'quik'; did you mean 'quick'"),
        ("arc_easy:5shots", "'arc_easy:5shots': unknown option '5shots'; give Nshot"),
        ("arc_easy:limit=0", "unknown option 'limit=0'"),
        ("lambada_openai:generation", "it has no generation protocol; use loglikelihood"),
        ("arc_easy,,piqa", "no suite or benchmark"),
        ("piqa,arc_easy,piqa:0shot", "'piqa' is given twice"),
        ("", "no suite or benchmark"),
    ],
)
def test_a_mistake_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        load_suite(text)


def test_suites_with_other_settings_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("name: a\ntitle: A\nseeds: [0, 1]\nbenchmarks: [gsm8k]\n")
    with pytest.raises(ConfigError, match=r"suites a\.yaml and quick differ in 'seeds' \(\(0, 1\), \(0,\)\)"):
        load_suite("a.yaml,quick")
