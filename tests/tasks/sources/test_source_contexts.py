"""Sources with several prompt lengths: which rows are of which, and what is refused."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalsuite.foundation import ConfigError, DataError
from evalsuite.foundation.strict import parse
from evalsuite.tasks.benchmark import Benchmark, load_benchmark
from evalsuite.tasks.sources.documents import all_documents, count_documents, documents
from evalsuite.tasks.sources.freeze import freeze
from evalsuite.tasks.suite import Entry, Suite, resolve

LENGTHS = {100: {"at_most": {"chars": 300}}, 200: {"above": {"chars": 300}, "at_most": {"chars": 600}}}


def benchmark(contexts: list[int], source: dict[str, Any]) -> Benchmark:
    values = load_benchmark("fda").model_dump(mode="json") | {"name": "texts", "num_documents": None}
    values |= {"contexts": contexts, "source": {"dataset": "me/texts", "split": "test"} | source}
    return parse(values, Benchmark, "texts.yaml")


def write(folder: Path, config: str, rows: list[dict[str, Any]]) -> None:
    path = folder / "me__texts" / config / "test.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def test_bounds_of_a_column_part_the_rows(tmp_path: Path) -> None:
    write(tmp_path, "default", [{"text": str(n), "chars": n} for n in (1, 300, 301, 600, 601)])
    texts = benchmark([100, 200], {"contexts": LENGTHS})
    found = {
        context: [each.row["chars"] for each in documents(texts, data_dir=tmp_path, context=context)]
        for context in (100, 200)
    }
    assert found == {100: [1, 300], 200: [301, 600]}
    every = [each for group in all_documents(texts, data_dir=tmp_path) for each in group]
    assert [(each.row["chars"], each.context) for each in every] == [
        (1, 100),
        (300, 100),
        (301, 200),
        (600, 200),
    ]
    assert count_documents(texts, data_dir=tmp_path) == 2
    with pytest.raises(ConfigError, match=r"texts: has 100, 200 \(found 400\)"):
        documents(texts, data_dir=tmp_path, context=400)
    missing = benchmark([100], {"contexts": {100: {"at_most": {"tokens": 1}}}})
    with pytest.raises(DataError, match="has no column 'tokens'"):
        documents(missing, data_dir=tmp_path, context=100)
    empty = benchmark([100], {"contexts": {100: {"above": {"chars": 601}}}})
    with pytest.raises(DataError, match="has no documents of 100 tokens"):
        documents(empty, data_dir=tmp_path, context=100)


def test_configs_are_lengths_and_are_frozen_as_far_as_a_suite_has_them(tmp_path: Path) -> None:
    class Source:
        def rows(self, dataset: str, config: str | None, split: str) -> list[dict[str, Any]]:
            return [{"input": f"{config} {split}", "question": "Where?", "target": "office"}]

    suite = tmp_path / "s.yaml"
    suite.write_text("name: s\ntitle: S\nbenchmarks: [{benchmark: babilong_qa2, contexts: [2304, 1152]}]\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evalsuite.tasks.sources.freeze.open_source", lambda _: Source())
        result = freeze(suite, tmp_path / "data", quiet=True)
    assert [each.path.relative_to(tmp_path / "data").as_posix() for each in result.files] == [
        "RMT-team__babilong-1k-samples/2k/qa2.parquet",
        "RMT-team__babilong-1k-samples/1k/qa2.parquet",
    ]
    (found,) = documents(load_benchmark("babilong_qa2"), data_dir=tmp_path / "data", context=2304)
    assert "Text: 2k qa2\nQuestion: Where?\nAnswer:" in found.row["prompt"]
    assert found.context == 2304


@pytest.mark.parametrize(
    ("contexts", "source", "message"),
    [
        (
            [400],
            {"contexts": LENGTHS},
            r"'contexts' need a generator, or a source with the same ones .not 400",
        ),
        ([], {"contexts": LENGTHS}, "the source has 'contexts': name those of the benchmark"),
        ([100], {"contexts": {100: {"config": "a"}}, "configs": ["b"]}, "either 'configs' or the configs of"),
        ([100], {"contexts": {100: {"at_mots": {"chars": 1}}}}, "did you mean 'at_most'"),
    ],
)
def test_lengths_that_a_source_lacks_are_refused(
    contexts: list[int], source: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        benchmark(contexts, source)


def test_suites_choose_among_the_lengths_of_the_source() -> None:
    entry = Entry(benchmark="mrcr_2needle", contexts=(8192, 262144))
    ((resolved, _),) = resolve(Suite(name="s", title="S", benchmarks=(entry,)))
    assert resolved.contexts == (8192, 262144)
    entry = Entry(benchmark="mrcr_2needle", contexts=(4096,))
    with pytest.raises(ConfigError, match="'contexts' = 4096: its source has the lengths 8192, 16384"):
        resolve(Suite(name="s", title="S", benchmarks=(entry,)))
    entry = Entry(benchmark="babilong_qa1", limits={"generation": 3}, limit=5)
    with pytest.raises(ConfigError, match="its documents have several lengths; give one 'limit'"):
        resolve(Suite(name="s", title="S", benchmarks=(entry,)))


def test_sources_without_lengths_are_stored_as_before() -> None:
    """Score files are named by what they are made of: a new key must not make old ones stale."""
    stored = load_benchmark("arc_easy").model_dump(mode="json")
    assert "contexts" not in stored["source"]
    assert "truncate" not in stored["loglikelihood"]
    for name in ("longbench_v2", "mrcr_2needle"):
        stored = load_benchmark(name).model_dump(mode="json")
        assert parse(stored, Benchmark, "run.json").model_dump(mode="json") == stored
    assert load_benchmark("longbench_v2").model_dump()["loglikelihood"]["truncate"] == "middle"
