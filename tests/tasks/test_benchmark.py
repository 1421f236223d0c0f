"""Validation of benchmark and suite files, and of the built-in ones."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from evalsuite.foundation import ConfigError
from evalsuite.foundation.strict import parse
from evalsuite.tasks.benchmark import FOLDER, Benchmark, all_benchmarks, known_benchmarks, load_benchmark
from evalsuite.tasks.sources.documents import documents
from evalsuite.tasks.suite import Suite, known_suites, load_suite, resolve, resolve_sampling
from evalsuite.tasks.synthetic.pocket import TASKS


@pytest.mark.parametrize("name", known_benchmarks())
def test_built_in_benchmarks_are_valid(name: str) -> None:
    benchmark = load_benchmark(name)
    assert benchmark.protocols
    assert benchmark.license


STUDIES = sorted(map(str, (FOLDER.parents[1] / "reports" / "studies" / "suites").glob("*.yaml")))


@pytest.mark.parametrize("name", [*known_suites(), *STUDIES])
def test_suites_of_the_package_and_of_studies_resolve(name: str) -> None:
    for entry, benchmark in resolve(load_suite(name)):
        assert entry.protocols
        assert set(entry.num_fewshot) == set(benchmark.protocols)
        assert bool(entry.contexts) == bool(benchmark.contexts)


def test_generators_make_documents() -> None:
    """Those that draw from no dataset."""
    for each in all_benchmarks():
        if each.generated is not None and not each.generated.inputs:
            context = each.contexts[0] if each.contexts else None
            found = documents(each, limit=2, context=context, count_tokens=lambda text: len(text.split()))
            assert len({document.doc_id for document in found}) == 2, each.name


def test_pocket_benchmarks_match_the_task_registry() -> None:
    built_in = {
        each.generated.task: each
        for each in all_benchmarks()
        if each.generated is not None and each.generated.generator == "pocket"
    }
    assert set(built_in) == set(TASKS)
    for kind, benchmark in built_in.items():
        assert benchmark.category == TASKS[kind].category
        assert benchmark.protocols == TASKS[kind].protocols
        assert benchmark.contexts == TASKS[kind].contexts
        assert benchmark.generation is not None
        assert benchmark.generation.sampling.max_new_tokens == TASKS[kind].max_new_tokens


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown benchmark 'hellaswg'; did you mean 'hellaswag'"):
        load_benchmark("hellaswg")
    with pytest.raises(
        ConfigError, match="unknown suite or benchmark 'pocket-quik'; did you mean 'pocket-quick'"
    ):
        load_suite("pocket-quik")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"transform": "statments"}, "org/t: unknown transform 'statments'; did you mean 'statements'"),
        (
            {"transform": "statements", "transform_args": {"template": 2}},
            r"org/t: transform statements: unknown key 'transform_args\.template'; did you mean 'templates'",
        ),
    ],
)
def test_transforms_and_their_arguments_are_known(source: dict, message: str, tmp_path: Path) -> None:
    (tmp_path / "org__t" / "default").mkdir(parents=True)
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "org__t" / "default" / "test.parquet")
    values = arc() | {"num_documents": None, "source": {"dataset": "org/t", "split": "test", **source}}
    with pytest.raises(ConfigError, match=message):
        documents(parse(values, Benchmark, "b.yaml"), data_dir=tmp_path)


def test_an_unknown_generator_suggests_the_nearest() -> None:
    values = arc() | {"num_documents": None, "source": None}
    values["generated"] = {"generator": "pockt", "task": "facts", "count": 2}
    with pytest.raises(ConfigError, match="arc_easy: unknown generator 'pockt'; did you mean 'pocket'"):
        documents(parse(values, Benchmark, "b.yaml"))


def arc() -> dict:
    return yaml.safe_load((FOLDER / "arc_easy.yaml").read_text())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"titel": "x"}, "unknown key 'titel'; did you mean 'title'"),
        ({"license": None}, "'license' = None"),
        (
            {"source": {"dataset": "a/b", "splits": "test"}},
            "unknown key 'source.splits'; did you mean 'split'",
        ),
        ({"source": {"dataset": "a/b"}}, "'source': 'split' is required"),
        ({"source": {"split": "test"}}, "'source': give either 'dataset' or 'file'"),
        (
            {"source": {"file": "q.jsonl", "split": "test"}},
            "'source': 'split' belongs to a 'dataset'; remove it",
        ),
        ({"source": {"dataset": "a/b", "split": "test", "sha256": "0"}}, "'sha256' belongs to a 'file'"),
        ({"source": {"file": "none.jsonl"}}, r"none\.jsonl: no such file"),
        ({"source": {"file": "none.txt"}}, r"none\.txt: not a file of questions; known: \.jsonl"),
        (
            {"source": {"dataset": "a/b", "split": "test", "fewshot_split": "test"}},
            "must not be the evaluated split",
        ),
        ({"source": None}, "either a 'source' or a 'generated' block"),
        ({"contexts": [128]}, "'contexts' need a generator"),
        ({"chance": 1.5}, "a chance level is a fraction"),
        ({"loglikelihood": None, "generation": None}, "a 'loglikelihood' block, a 'generation' block"),
        ({"category": "reasonin"}, "'category' = 'reasonin': unknown category; did you mean 'reasoning'"),
    ],
)
def test_invalid_benchmark_file_is_refused(tmp_path: Path, change: dict, message: str) -> None:
    path = tmp_path / "arc_easy.yaml"
    path.write_text(yaml.safe_dump(arc() | change))
    with pytest.raises(ConfigError, match=message):
        load_benchmark(path)


def test_suite_with_its_own_benchmark_files(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(arc() | {"name": "mine"}))
    (tmp_path / "suite.yaml").write_text("name: own\ntitle: Own\nbenchmarks: [mine.yaml, piqa]\n")
    suite = load_suite(tmp_path / "suite.yaml")
    assert [benchmark.name for _, benchmark in resolve(suite, near=tmp_path)] == ["mine", "piqa"]


def suite(**settings: object) -> Suite:
    return Suite.model_validate({"name": "s", "title": "S", "benchmarks": ["arc_easy"], **settings})


def test_missing_protocol_is_refused() -> None:
    custom = suite(benchmarks=[{"benchmark": "gsm8k", "protocols": ["loglikelihood"]}])
    with pytest.raises(
        ConfigError, match="gsm8k: 'protocols' = loglikelihood: it has no loglikelihood protocol"
    ):
        resolve(custom)


def test_contexts_of_a_benchmark_without_contexts_are_refused() -> None:
    with pytest.raises(ConfigError, match="benchmarks: arc_easy: 'contexts': it has no context lengths"):
        resolve(suite(benchmarks=[{"benchmark": "arc_easy", "contexts": [128]}]))


def test_duplicate_benchmark_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("name: s\ntitle: S\nbenchmarks: [piqa, piqa]\n")
    with pytest.raises(ConfigError, match="'piqa' is listed twice"):
        load_suite(path)


def test_suite_limit_fewshot_and_sampling_apply_to_benchmarks() -> None:
    custom = suite(
        limit=5,
        sampling={"max_new_tokens": 256, "temperature": 0.7, "top_k": 20},
        benchmarks=[
            "arc_easy",
            {"benchmark": "gsm8k", "limit": 7, "num_fewshot": {"generation": 2}},
            "pocket_facts",
        ],
    )
    (first, arc_easy), (second, _), (third, facts) = resolve(custom)
    assert (first.limit, second.limit) == (5, 7)
    assert second.num_fewshot == {"generation": 2}
    assert resolve_sampling(custom, first, arc_easy).max_new_tokens == 256
    assert resolve_sampling(custom, third, facts).max_new_tokens == 8
    assert resolve_sampling(custom, third, facts).temperature == 0.7
    assert isinstance(facts, Benchmark)
