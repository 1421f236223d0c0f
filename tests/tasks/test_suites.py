"""Built-in suites against the papers that define them, and suite settings."""

import os
from pathlib import Path

import pytest

from evalsuite.evaluation.build import fewshot_examples, make_harness
from evalsuite.foundation import ConfigError
from evalsuite.protocols.loglikelihood import LogLikelihoodBenchmark
from evalsuite.reports.references.papers import BENCHMARKS, CITATIONS, MEANS, TABLE_MEANS, paper_scores
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.sources.documents import documents
from evalsuite.tasks.suite import load_suite, resolve


def cells(name: str) -> dict[tuple[str, str], str]:
    """(benchmark, protocol) → metric."""
    return {
        (benchmark.name, protocol): entry.metrics[protocol]
        for entry, benchmark in resolve(load_suite(name))
        for protocol in entry.protocols
    }


TABLES = sorted({(each.source, each.table) for each in paper_scores() if each.benchmark not in TABLE_MEANS})


def test_every_paper_has_tables() -> None:
    assert {paper for paper, _ in TABLES} == CITATIONS.keys()


@pytest.mark.parametrize(("paper", "table"), TABLES)
def test_paper_suites_cover_their_tables(paper: str, table: str) -> None:
    found = cells(paper.replace("_", "-"))
    for figure in paper_scores():
        if (figure.source, figure.table) != (paper, table) or figure.benchmark in TABLE_MEANS:
            continue
        if figure.benchmark in MEANS:
            assert {(name, figure.protocol) for name in MEANS[figure.benchmark]} <= found.keys(), figure
            continue
        names = [name for name in BENCHMARKS[figure.benchmark] if (name, figure.protocol) in found]
        assert len(names) == 1, figure
        if figure.metric in ("acc", "acc_norm", "perplexity") and figure.protocol == "loglikelihood":
            assert found[names[0], figure.protocol] == figure.metric, figure


@pytest.mark.parametrize("name", ["gendistill-2026", "gendistill-2026-greedy"])
def test_gendistill_teacher_does_not_think(name: str) -> None:
    for entry, benchmark in resolve(load_suite(name)):
        how = benchmark.generation
        if "generation" in entry.protocols and how is not None and how.prompt == "chat":
            assert how.chat_template_kwargs == {"enable_thinking": False}, benchmark.name
            assert how.reasoning == "strip"


@pytest.mark.data
@pytest.mark.parametrize("name", ["linearizing-2025", "kd-nine-2025", "gendistill-2026", "kl-guided-2026"])
def test_paper_suites_build_prompts_from_frozen_data(name: str) -> None:
    """With the number of few-shot examples of each benchmark whose data are there."""
    data = os.environ.get("EVALSUITE_DATA")
    if not data:
        pytest.skip("EVALSUITE_DATA is not set")
    built = set()
    for entry, benchmark in resolve(load_suite(name)):
        folders = [Path(data, source.dataset.replace("/", "__")) for _, source in benchmark.subject_sources]
        runs_code = benchmark.name == "humaneval"
        if not folders or not all(map(Path.is_dir, folders)) or runs_code:
            continue
        found = documents(benchmark, data_dir=data, limit=2)
        for protocol in entry.protocols:
            num_fewshot = entry.num_fewshot[protocol]
            examples = fewshot_examples(benchmark, num_fewshot, data)
            harness = make_harness(benchmark, protocol, found, num_fewshot, examples)
            texts = (
                [harness.pairs(number)[0][0] for number in range(2)]
                if isinstance(harness, LogLikelihoodBenchmark)
                else [harness.text(number, None, chat_template=False) for number in range(2)]
            )
            assert len(set(texts)) == 2, benchmark.name
            built.add(benchmark.name)
    assert built


def test_every_real_benchmark_is_in_a_suite() -> None:
    from evalsuite.tasks.benchmark import known_benchmarks

    found = {
        name
        for suite in ("all", "generator", "base", "padded", "needles", "needles-heldout", "long", "reasoning")
        for name, _ in cells(suite)
    }
    missing = set(known_benchmarks()) - found
    assert {name for name in missing if load_benchmark(name).group != "pocket"} == {
        "kv_retrieval_75",  # Not on the hub; kv_retrieval generates equivalent questions.
        "kv_retrieval_140",
    }


def test_included_suites_contribute_limits_but_not_sampling(tmp_path: Path) -> None:
    (tmp_path / "inner.yaml").write_text(
        "name: inner\ntitle: I\nlimit: 7\nseeds: [4, 5]\nbenchmarks: [gsm8k, {benchmark: piqa, limit: 2}]\n"
    )
    outer = tmp_path / "outer.yaml"
    outer.write_text(
        f"name: outer\ntitle: O\ninclude: [{tmp_path}/inner.yaml]\n"
        "benchmarks: [{benchmark: piqa, protocols: [generation]}]\n"
    )
    suite = load_suite(outer)
    assert [(each.benchmark, each.limit) for each in suite.benchmarks] == [("piqa", None), ("gsm8k", 7)]
    assert suite.seeds == (0,)
    outer.write_text(f"name: outer\ntitle: O\ninclude: [{outer}]\n")
    with pytest.raises(ConfigError, match="includes itself"):
        load_suite(outer)
    outer.write_text("name: outer\ntitle: O\n")
    with pytest.raises(ConfigError, match="give 'benchmarks', suites to 'include', or both"):
        load_suite(outer)
    outer.write_text("name: outer\ntitle: O\ninclude: [linearising-2025]\n")
    with pytest.raises(ConfigError, match="did you mean 'linearizing-2025'"):
        load_suite(outer)


def test_suite_overrides_the_main_metric(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    entry = "{benchmark: lambada_openai, metrics: {loglikelihood: perplexity}}"
    path.write_text(f"name: s\ntitle: S\nbenchmarks: [{entry}]\n")
    ((_, benchmark),) = resolve(load_suite(path))
    assert benchmark.loglikelihood is not None
    assert (benchmark.loglikelihood.metric, benchmark.loglikelihood.direction) == ("perplexity", "lower")
    path.write_text(f"name: s\ntitle: S\nbenchmarks: [{entry.replace('loglikelihood', 'generation')}]\n")
    with pytest.raises(
        ConfigError,
        match="lambada_openai: 'metrics' = generation: it has no generation protocol; use logl",
    ):
        resolve(load_suite(path))


def test_limits_per_protocol(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"

    def limits_of(text: str) -> list[tuple[int | None, dict]]:
        path.write_text(f"name: s\ntitle: S\n{text}\n")
        return [(entry.limit, entry.limits) for entry, _ in resolve(load_suite(path))]

    prefix = "limits: {generation: 4}\nbenchmarks: "
    assert limits_of(prefix + "[piqa, gsm8k]") == [(None, {"generation": 4}), (4, {})]
    assert limits_of(prefix + "[{benchmark: piqa, limit: 9}]") == [(9, {})]
    assert limits_of(prefix + "[{benchmark: piqa, limits: {generation: 2}}]") == [(None, {"generation": 2})]
    assert limits_of("limit: 9\n" + prefix + "[piqa]") == [(9, {"generation": 4})]
    assert limits_of(prefix + "[{benchmark: piqa, protocols: [loglikelihood]}]") == [(None, {})]
    with pytest.raises(
        ConfigError, match=r"s.yaml: benchmarks: pocket_facts: 'limits': its documents are generated"
    ):
        limits_of(prefix + "[pocket_facts]")
    with pytest.raises(ConfigError, match="limits"):
        limits_of("limits: {generation: 0}\nbenchmarks: [piqa]")
    with pytest.raises(ConfigError, match="gsm8k: 'limits' = loglikelihood: it has no loglikelihood"):
        limits_of("benchmarks: [{benchmark: gsm8k, limits: {loglikelihood: 2}}]")
    inner = tmp_path / "inner.yaml"
    inner.write_text("name: inner\ntitle: I\nlimits: {generation: 3}\nbenchmarks: [piqa]\n")
    assert limits_of(f"include: ['{inner}']") == [(None, {"generation": 3})]


def test_samplers_of_suites_and_entries(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"

    def samplers_of(text: str) -> list[str]:
        path.write_text(f"name: s\ntitle: S\n{text}\n")
        return [entry.sampler for entry, _ in resolve(load_suite(path))]

    benchmarks = "benchmarks: [piqa, {benchmark: gsm8k, sampler: seeded}, pocket_facts]"
    assert samplers_of(f"sampler: first\n{benchmarks}") == ["first", "", ""]
    assert samplers_of(benchmarks) == ["", "", ""]
    with pytest.raises(
        ConfigError, match=r"s.yaml: benchmarks: piqa: 'sampler': unknown sampler 'frist'; did"
    ):
        samplers_of("sampler: frist\nbenchmarks: [piqa]")
    with pytest.raises(ConfigError, match="pocket_facts: 'sampler' = first: its documents are generated"):
        samplers_of("benchmarks: [{benchmark: pocket_facts, sampler: first}]")
    inner = tmp_path / "inner.yaml"
    inner.write_text("name: inner\ntitle: I\nsampler: first\nbenchmarks: [piqa]\n")
    assert samplers_of(f"include: ['{inner}']\nbenchmarks: [gsm8k]") == ["", "first"]


def test_unknown_benchmark_error_names_the_suite(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("name: mine\ntitle: M\nbenchmarks: [arc_eazy]\n")
    with pytest.raises(ConfigError, match=r"s.yaml: benchmarks: unknown benchmark 'arc_eazy'; did you m"):
        resolve(load_suite(path))


@pytest.mark.parametrize(
    "setting",
    [
        "seeds: [0, 0]",
        "seeds: [-1]",
        "seed: -1",
        "seed: 100000000000000000000",
        "limit: 99999999999999999999999999",
        "limits: {generation: 0}",
        "include: [pocket, pocket]",
        "benchmarks: [{benchmark: arc_easy, num_fewshot: {loglikelihood: -1}}]",
        "benchmarks: [{benchmark: arc_easy, contexts: [1024, 1024]}]",
        "benchmarks: [{benchmark: arc_easy, protocols: [generation, generation]}]",
    ],
)
def test_settings_out_of_range_or_given_twice_are_refused(setting: str, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    benchmarks = "" if setting.startswith("benchmarks") else "benchmarks: [arc_easy]\n"
    path.write_text(f"name: own\ntitle: Own\n{benchmarks}{setting}\n")
    with pytest.raises(ConfigError, match=r"own\.yaml.*(twice|greater|less|more than 64 bits)"):
        load_suite(path)
