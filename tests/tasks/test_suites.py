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
from evalsuite.tasks.suite import known_suites, load_suite, resolve, resolve_sampling


def cells(name: str) -> dict[tuple[str, str], str]:
    """(benchmark, protocol) → metric."""
    return {
        (benchmark.name, protocol): entry.metrics[protocol]
        for entry, benchmark in resolve(load_suite(name))
        for protocol in entry.protocols
    }


def test_suite_quick_settings() -> None:
    suite = load_suite("quick")
    found = {
        (benchmark.name, protocol): (entry.limit, entry.contexts, entry.num_fewshot[protocol])
        for entry, benchmark in resolve(suite)
        for protocol in entry.protocols
    }
    assert found == {
        ("arc_easy", "loglikelihood"): (500, (), 0),
        ("hellaswag", "loglikelihood"): (500, (), 0),
        ("piqa", "loglikelihood"): (500, (), 0),
        ("lambada_openai", "loglikelihood"): (500, (), 0),
        ("arc_easy", "generation"): (500, (), 0),
        ("gsm8k", "generation"): (200, (), 4),
        ("ifeval", "generation"): (200, (), 0),
        ("niah_single_1", "generation"): (100, (512, 2048), 0),
    }
    for entry, benchmark in resolve(suite):
        if "generation" in entry.protocols:
            sampling = resolve_sampling(suite, entry, benchmark)
            assert sampling.temperature == 0
            assert sampling.max_new_tokens <= 256


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


def test_paper_suite_sampling_seeds_and_fewshot() -> None:
    suite = load_suite("gendistill-2026")
    assert suite.seeds == (1, 2, 3)
    entries = {benchmark.name: (entry, benchmark) for entry, benchmark in resolve(suite)}
    spec = resolve_sampling(suite, *entries["gsm8k"])
    assert (spec.max_new_tokens, spec.temperature, spec.top_p, spec.top_k) == (1024, 0.7, 0.8, 20)
    # Long contexts use greedy decoding.
    assert resolve_sampling(suite, *entries["niah_single_3"]).temperature == 0
    fewshot = {name: entry.num_fewshot.get("generation") for name, (entry, _) in entries.items()}
    assert (fewshot["ceval"], fewshot["gsm8k"], fewshot["bbh"], fewshot["cmmlu"]) == (5, 4, 0, 0)
    assert (fewshot["mmlu"], fewshot["truthfulqa"], fewshot["piqa"]) == (5, 0, 0)
    # lm-eval's default.
    assert not any(entry.num_fewshot.get("loglikelihood") for entry, _ in entries.values())
    greedy = load_suite("gendistill-2026-greedy")
    assert {benchmark.name for _, benchmark in resolve(greedy)} < set(entries)
    assert resolve_sampling(greedy, *entries["gsm8k"]).temperature == 0


def test_gendistill_generates_what_its_appendix_b_and_table_18_list() -> None:
    """Appendix B names TruthfulQA and MMLU for EvalScope; four tasks of Table 18 have both protocols."""
    found = cells("gendistill-2026")
    assert ("truthfulqa", "generation") in found
    for name in ("mmlu", "piqa", "arc_easy", "arc_challenge", "hellaswag", "winogrande"):
        assert {(name, "generation"), (name, "loglikelihood")} <= found.keys(), name
    assert found["lambada_openai", "loglikelihood"] == "perplexity"


@pytest.mark.parametrize("name", ["gendistill-2026", "gendistill-2026-greedy"])
def test_gendistill_teacher_does_not_think(name: str) -> None:
    for entry, benchmark in resolve(load_suite(name)):
        how = benchmark.generation
        if "generation" in entry.protocols and how is not None and how.prompt == "chat":
            assert how.chat_template_kwargs == {"enable_thinking": False}, benchmark.name
            assert how.reasoning == "strip"


def test_kl_guided_suite_has_the_tables_and_averages_of_the_paper() -> None:
    found = cells("kl-guided-2026")
    assert {name: metric for (name, protocol), metric in found.items() if protocol == "loglikelihood"} == {
        "piqa": "acc_norm",
        "arc_easy": "acc_norm",
        "arc_challenge": "acc_norm",
        "hellaswag": "acc_norm",
        "winogrande": "acc",
    }
    ruler = [
        (entry.contexts, benchmark.name)
        for entry, benchmark in resolve(load_suite("kl-guided-2026"))
        if benchmark.group == "ruler"
    ]
    assert len(ruler) == 13
    assert {contexts for contexts, _ in ruler} == {(4096,)}
    generation = {name: metric for (name, protocol), metric in found.items() if protocol == "generation"}
    assert {name: generation[name] for name in ("fda", "swde", "squadv2", "squad_completion")} == {
        "fda": "contains",
        "swde": "contains",
        "squadv2": "f1",
        "squad_completion": "contains",
    }


def test_linearizing_suite_uses_lm_evals_five_examples_of_gsm8k() -> None:
    entries = {benchmark.name: entry for entry, benchmark in resolve(load_suite("linearizing-2025"))}
    assert entries["gsm8k"].num_fewshot == {"generation": 5}
    zero_shot = resolve(load_suite("linearizing-2025-zero-shot"))
    assert {count for entry, _ in zero_shot for count in entry.num_fewshot.values()} == {0}


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


def test_kd_nine_suite_uses_unnormalized_accuracy() -> None:
    assert set(cells("kd-nine-2025").values()) == {"acc"}
    assert {name for name, _ in cells("kd-nine-2025")} == {
        "lambada",
        "winogrande",
        "arc_easy",
        "arc_challenge",
        "piqa",
        "hellaswag",
    }


def test_suites_all_and_generator_have_every_real_benchmark() -> None:
    from evalsuite.tasks.benchmark import known_benchmarks

    found = {name for suite in ("all", "generator") for name, _ in cells(suite)}
    missing = set(known_benchmarks()) - found
    assert {name for name in missing if load_benchmark(name).group != "pocket"} == {
        "kv_retrieval_75",  # Not on the hub; kv_retrieval generates equivalent questions.
        "kv_retrieval_140",
    }


@pytest.mark.parametrize("name", known_suites())
def test_only_perplexities_are_lower_is_better(name: str) -> None:
    for _, benchmark in resolve(load_suite(name)):
        how = benchmark.loglikelihood
        assert how is None or (how.direction == "lower") == ("perplexity" in how.metric)


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


def test_published_leaderboard_suite_matches_the_paper() -> None:
    suite = load_suite("smollm2-135m-instruct")
    entries = {benchmark.name: entry for entry, benchmark in resolve(suite)}
    by_loglikelihood = {name: each for name, each in entries.items() if "loglikelihood" in each.protocols}
    paper = cells("linearizing-2025-zero-shot")
    ours = {name: each.metrics["loglikelihood"] for name, each in by_loglikelihood.items()}
    theirs = {name.replace("lambada", "lambada_openai"): metric for (name, _), metric in paper.items()}
    assert ours == theirs | {"mmlu": "acc"}
    assert all(each.limit is None for each in by_loglikelihood.values())
    assert {entries[name].limits["generation"] for name in ("arc_easy", "piqa", "hellaswag")} == {1000}
    assert entries["niah_single_3"].contexts == (512, 1024, 2048, 4096)
    assert (entries["niah_single_3"].limit, entries["gsm8k"].limit) == (200, 1000)


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
