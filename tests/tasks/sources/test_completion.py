"""Few-shot completion prompts: one text for both protocols, with examples that are never evaluated."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalsuite.foundation import ConfigError, DataError
from evalsuite.foundation.strict import parse
from evalsuite.tasks.benchmark import Benchmark, load_benchmark
from evalsuite.tasks.sources.documents import documents
from evalsuite.tasks.suite import load_suite, resolve
from tests.tasks.sources.prompts import prompts

SUITE = [benchmark for _, benchmark in resolve(load_suite("base"))]


def reading(**completion: Any) -> Benchmark:
    values = {
        "name": "reading",
        "title": "Reading",
        "category": "recall",
        "license": "none",
        "citation": "none",
        "source": {"dataset": "org/reading", "split": "test", "cluster_column": "passage"},
        "completion": {
            "prompt": "{{ passage }}\nQuestion: {{ question }}\nAnswer:",
            "answer": "{{ answer }}",
            "choices": "options",
            "num_fewshot": 2,
            "set_aside": 3,
            **completion,
        },
        "loglikelihood": {"task": "evalsuite/choices.yaml", "metric": "acc", "chance": "per_document"},
        "generation": {
            "dataset": "evalsuite",
            "scorer": "starts_with",
            "metric": "accuracy",
            "prompt": "literal",
            "fields": {"answers": "[answer]"},
            "sampling": {"max_new_tokens": 8, "stop": ["\n"]},
        },
    }
    return parse(values, Benchmark, "reading.yaml")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two questions on each of ten passages."""
    rows = [
        {"passage": f"Passage {number // 2}.", "question": f"Which {number}?", "answer": f"{number}"}
        | {"options": [f"{number}", f"{number + 1}"]}
        for number in range(20)
    ]
    path = tmp_path / "org__reading/default/test.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return tmp_path


def test_both_protocols_have_the_same_prompt(data: Path) -> None:
    found = documents(reading(), data_dir=data)
    for text, document in zip(prompts(reading(), found), found, strict=True):
        *examples, question = text.split("\n\n")
        assert len(examples) == 2
        assert question == f"{document.row['passage']}\nQuestion: {document.row['question']}\nAnswer:"
        for example in examples:
            assert (
                example.splitlines()[2].removeprefix("Answer: ") == example.split("Which ")[1].split("?")[0]
            )


def test_passages_of_examples_are_never_evaluated(data: Path) -> None:
    found = documents(reading(), data_dir=data)
    assert len(found) == 14  # Three of ten passages are set aside with both questions.
    shown = {
        line for each in found for line in each.row["prompt"].split("\n") if line.startswith("Passage")
    } - {each.row["passage"] for each in found}
    assert len(shown) == 3
    own = {each.row["passage"] for each in found}
    for each in found:
        assert own & set(each.row["prompt"].split("\n")) == {each.row["passage"]}


def test_examples_depend_on_the_completion_alone(data: Path) -> None:
    everything = {each.doc_id: each.row for each in documents(reading(), data_dir=data)}
    sample = documents(reading(), data_dir=data, limit=5, seed=7)
    assert [everything[each.doc_id] for each in sample] == [each.row for each in sample]
    other = documents(reading(seed=1), data_dir=data)
    assert {each.doc_id for each in other} != everything.keys()


def test_ids_are_those_of_the_rows(data: Path) -> None:
    plain = reading().model_copy(update={"completion": None})
    known = {each.doc_id for each in documents(plain, data_dir=data)}
    assert {each.doc_id for each in documents(reading(), data_dir=data)} < known


def test_generated_documents_have_examples_of_another_seed() -> None:
    benchmark = load_benchmark("short_arithmetic_fewshot")
    found = documents(benchmark, limit=20)
    assert [each.doc_id for each in found] == [
        each.doc_id for each in documents(load_benchmark("short_arithmetic"), limit=20)
    ]
    for text in prompts(benchmark, found):
        *examples, question = text.split("\n\n")
        assert len(examples) == 5
        assert question not in " ".join(examples)
        assert all(example.rpartition("Answer: ")[2].isdigit() for example in examples)


def test_completions_are_refused_by_key(data: Path) -> None:
    with pytest.raises(ConfigError, match="needs 'set_aside' or a 'fewshot_split'"):
        reading(set_aside=0)
    with pytest.raises(ConfigError, match="must not end with white space"):
        reading(prompt="Answer: ")
    with pytest.raises(ConfigError, match=r"num_fewshot = 4, but document \w+ has only 3 examples"):
        documents(reading(num_fewshot=4), data_dir=data)
    with pytest.raises(DataError, match=r"completion.choices: \['no'\] lack the answer '0'"):
        documents(reading(choices="['no']", num_fewshot=0, set_aside=0), data_dir=data)
    with pytest.raises(DataError, match=r"completion cannot read a row .*'text' is undefined"):
        documents(reading(answer="{{ text }}"), data_dir=data)
    values = reading().model_dump(mode="json", exclude={"generation"})
    for key, wrong in (("task", "piqa/piqa.yaml"), ("num_fewshot", 2)):
        changed = values | {"loglikelihood": values["loglikelihood"] | {key: wrong}}
        with pytest.raises(ConfigError, match=r"'completion' (needs|has its own)"):
            parse(changed, Benchmark, "reading.yaml")


def test_a_file_includes_a_built_in_benchmark(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\ntitle: Mine\ninclude: piqa\nnum_documents: 5\n")
    found, piqa = load_benchmark(path), load_benchmark("piqa")
    assert found == piqa.model_copy(update={"name": "mine", "title": "Mine", "num_documents": 5})
    path.write_text("name: mine\ninclude: piga\n")
    with pytest.raises(ConfigError, match="no built-in benchmark; did you mean 'piqa'"):
        load_benchmark(path)
    path.write_text("name: mine\ninclude: sciq_fewshot\n")  # which itself includes sciq
    assert load_benchmark(path) == load_benchmark("sciq_fewshot").model_copy(update={"name": "mine"})


@pytest.mark.data
@pytest.mark.parametrize("benchmark", SUITE, ids=lambda each: each.name)
def test_base_has_one_prompt_for_both_protocols(benchmark: Benchmark) -> None:
    folder = os.environ.get("EVALSUITE_DATA")
    if not folder:
        pytest.skip("EVALSUITE_DATA is not set")
    found = documents(benchmark, data_dir=folder, limit=5)
    assert benchmark.completion is not None
    assert len(set(prompts(benchmark, found))) == 5
    for document in found:
        assert 0 <= document.row["gold"] < len(document.row["choices"])
