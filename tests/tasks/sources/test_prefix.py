"""Unrelated text before prompts: the same for both protocols, and documents that keep their ids."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalsuite.evaluation.build import make_harness
from evalsuite.evaluation.run_paths import documents_path, read_documents, write_documents
from evalsuite.foundation import ConfigError, DataError
from evalsuite.protocols.generation import GenerationBenchmark
from evalsuite.protocols.loglikelihood import LogLikelihoodBenchmark
from evalsuite.tasks.benchmark import Benchmark, Prefix, load_benchmark
from evalsuite.tasks.sources.documents import Document, documents
from evalsuite.tasks.suite import load_suite, resolve
from tests.tasks.sources.prompts import prompts

SENTENCES = [f"Sentence {number} has five words." for number in range(200)]


def padded(name: str, **prefix: Any) -> Benchmark:
    how = {"dataset": "org/reports", "split": "test", "words": 32, **prefix}
    return load_benchmark(name).model_copy(update={"prefix": Prefix.model_validate(how)})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "org__reports/default/test.parquet"
    path.parent.mkdir(parents=True)
    halves = [{"text": " ".join(SENTENCES[:90])}, {"text": " ".join(SENTENCES[90:])}]
    pq.write_table(pa.Table.from_pylist(halves), path)
    return tmp_path


def test_prefix_is_whole_sentences_before_the_same_prompt(data: Path) -> None:
    benchmark = padded("short_arithmetic_fewshot")
    found = documents(benchmark, data_dir=data, limit=20)
    plain = documents(load_benchmark("short_arithmetic_fewshot"), limit=20)
    assert [each.doc_id for each in found] == [each.doc_id for each in plain]
    starts = set()
    for text, document in zip(prompts(benchmark, found), plain, strict=True):
        excerpt, _, rest = text.partition("\n\n")
        assert rest == document.row["prompt"]
        sentences = [f"{each}." for each in excerpt.removesuffix(".").split(". ")]
        first = SENTENCES.index(sentences[0])
        assert sentences == SENTENCES[first : first + 6]  # 30 of at most 32 words
        starts.add(first)
    assert len(starts) > 10


def test_prefix_depends_on_the_document_and_its_seed(data: Path) -> None:
    def texts(limit: int, **prefix: Any) -> list[str]:
        found = documents(padded("short_arithmetic_fewshot", **prefix), data_dir=data, limit=limit)
        return [each.prefix for each in found]

    assert texts(5) == texts(10)[:5]
    assert texts(5) != texts(5, seed=1)


def test_run_folder_holds_the_prefix(data: Path, tmp_path: Path) -> None:
    found = documents(padded("short_arithmetic_fewshot"), data_dir=data, limit=2)
    plain = documents(load_benchmark("short_arithmetic_fewshot"), limit=2)
    for name, each in (("padded", found), ("plain", plain)):
        write_documents(documents_path(tmp_path, name), each)
        assert read_documents(tmp_path, name) == each
    assert "prefix" not in documents_path(tmp_path, "plain").read_text()


def test_what_has_no_prompt_or_text_is_refused(data: Path) -> None:
    benchmark = padded("wikitext")
    harness = make_harness(benchmark, "loglikelihood", [Document("0" * 16, {"page": "A page."}, prefix="x ")])
    assert isinstance(harness, LogLikelihoodBenchmark)
    with pytest.raises(ConfigError, match="'prefix' needs prompts; its whole text is scored"):
        harness.pairs(0)
    with pytest.raises(DataError, match=r"holds 1,000 words, fewer than 'prefix\.words' = 1,001"):
        documents(padded("short_arithmetic_fewshot", words=1001), data_dir=data, limit=1)
    with pytest.raises(DataError, match=r"a sentence of more than 'prefix\.words' = 4 words begins"):
        documents(padded("short_arithmetic_fewshot", words=4), data_dir=data, limit=1)
    with pytest.raises(DataError, match="has no column 'texts'; did you mean 'text'"):
        documents(padded("short_arithmetic_fewshot", column="texts"), data_dir=data, limit=1)


PAIRS = [
    (benchmark.name.removesuffix("_padded"), benchmark, entry.protocols)
    for entry, benchmark in resolve(load_suite("padded"))
    if benchmark.prefix is not None
]


@pytest.mark.data
@pytest.mark.parametrize(("name", "benchmark", "protocols"), PAIRS, ids=[name for name, *_ in PAIRS])
def test_padded_documents_are_those_of_the_plain_task(
    name: str, benchmark: Benchmark, protocols: tuple[str, ...]
) -> None:
    folder = os.environ.get("EVALSUITE_DATA")
    if not folder:
        pytest.skip("EVALSUITE_DATA is not set")
    plain = load_benchmark(name)
    ours, theirs = (documents(each, data_dir=folder, limit=5) for each in (benchmark, plain))
    assert [each.doc_id for each in ours] == [each.doc_id for each in theirs]
    for protocol in protocols:
        scored, unpadded = make_harness(benchmark, protocol, ours), make_harness(plain, protocol, theirs)
        for number, document in enumerate(ours):
            assert 1200 < len(document.prefix.split()) <= 1600
            if isinstance(scored, LogLikelihoodBenchmark):
                assert isinstance(unpadded, LogLikelihoodBenchmark)
                before = [(document.prefix + text, choice) for text, choice in unpadded.pairs(number)]
                assert scored.pairs(number) == before
            else:
                assert isinstance(unpadded, GenerationBenchmark)
                text = unpadded.text(number, None, chat_template=False)
                assert scored.text(number, None, chat_template=False) == document.prefix + text
