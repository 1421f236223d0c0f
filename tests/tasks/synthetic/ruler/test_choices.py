"""Needles with values to choose from: one prompt for four ways of measuring, and a half that is held out."""

import os
import re
from typing import Any

import pytest

from evalsuite.evaluation.build import make_harness
from evalsuite.foundation import DataError
from evalsuite.protocols.generation import GenerationBenchmark
from evalsuite.protocols.loglikelihood import LogLikelihoodBenchmark
from evalsuite.protocols.scorers import SCORERS
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.sources.documents import Document, documents
from evalsuite.tasks.suite import load_suite, resolve
from evalsuite.tasks.synthetic.ruler import niah, rows

Inputs = dict[str, list[list[dict[str, Any]]]]
NEEDLE = re.compile(r"One of the special magic numbers for (\S+) is: (\d+)\.")
DISTRACTOR = re.compile(r"The number printed on the [^.]*? is: (\d+)\.")


def drawn(task: str, inputs: Inputs, count: int = 20) -> list[dict[str, Any]]:
    return rows(
        task,
        seed=53,
        count=count,
        context=512,
        count_tokens=lambda text: len(text.split()),
        inputs=inputs[task],
    )


@pytest.mark.parametrize("task", sorted(niah.CHOICE_TASKS))
def test_values_are_inside_and_outside_the_text(task: str, inputs: Inputs) -> None:
    for row in drawn(task, inputs):
        text, _, question = row["prompt"].rpartition("\n")
        (answer,) = row["answers"]
        needles = dict(NEEDLE.findall(text))
        stated = [*needles.values(), *DISTRACTOR.findall(text)]
        assert len(needles) == (4 if "multikey" in task else 1)
        assert sorted(stated) == sorted(row["inside"])
        assert len(set(row["inside"])) == 4
        assert question.endswith(" mentioned in the provided text is:")
        (queried,) = {key for key in needles if key in question}
        assert needles[queried] == answer
        assert set(needles) == set(row["keys"])
        assert row["outside"][0] == answer
        assert len(set(row["outside"]) | set(row["inside"])) == 7
        assert not [value for value in row["outside"][1:] if value in text]
        assert len(row["prompt"].split()) <= 512 - niah.CHOICE_TOKENS_TO_GENERATE
        where = text.index(f"{queried} is: {answer}") / len(text)
        assert abs(where - row["depth"] / 100) < 0.25


def test_a_heldout_half_shares_no_key_value_or_sentence(inputs: Inputs) -> None:
    for kind in ("needle_single", "needle_multikey"):
        one, other = drawn(kind, inputs), drawn(f"{kind}_heldout", inputs)
        for get in (
            lambda row: row["keys"],
            lambda row: row["inside"] + row["outside"],
            lambda row: re.findall(r"Word\d+", row["prompt"]),
        ):
            first, second = ({each for row in found for each in get(row)} for found in (one, other))
            assert first
            assert first.isdisjoint(second)
        reached = {int(each) for row in one for each in re.findall(r"Word(\d+)", row["prompt"])}
        assert min(reached) * 3 >= niah.UNUSED_FROM - 3


def test_haystacks_of_documents_differ(inputs: Inputs) -> None:
    texts = [row["prompt"].split("\n")[1] for row in drawn("needle_single", inputs)]
    assert len({re.search(r"Word\d+", text)[0] for text in texts}) > 15  # type: ignore[index]


def test_too_few_essays_are_refused() -> None:
    with pytest.raises(DataError, match="the essays hold 3 words; haystacks of these tasks begin after"):
        rows(
            "needle_single",
            seed=0,
            count=1,
            context=512,
            count_tokens=lambda text: len(text.split()),
            inputs=[[{"text": "Too few words."}]],
        )


def test_four_ways_share_documents_and_prompts(inputs: Inputs) -> None:
    for kind in ("single", "multikey"):
        found = {}
        for where in ("inside", "outside"):
            benchmark = load_benchmark(f"needle_{kind}_{where}")
            rows_of = drawn(f"needle_{kind}", inputs, count=3)
            found[where] = [_completed(benchmark, number, row) for number, row in enumerate(rows_of)]
        harness = make_harness(load_benchmark(f"needle_{kind}_inside"), "generation", found["inside"])
        assert isinstance(harness, GenerationBenchmark)
        for where, documents_ in found.items():
            scored = make_harness(load_benchmark(f"needle_{kind}_{where}"), "loglikelihood", documents_)
            assert isinstance(scored, LogLikelihoodBenchmark)
            for number, document in enumerate(documents_):
                pairs = scored.pairs(number)
                assert [choice for _, choice in pairs] == [f" {each}" for each in document.row[where]]
                assert {context for context, _ in pairs} == {harness.text(number, None, chat_template=True)}
                assert f" {document.row['answers'][0]}" == pairs[document.row["gold"]][1]


def _completed(benchmark: Any, number: int, row: dict[str, Any]) -> Document:
    from evalsuite.tasks.sources.completion import Completer

    return Document(f"{number:016x}", Completer(benchmark.completion, benchmark.name).row(row, []))


def test_needle_scorer_has_both_rules() -> None:
    row = {"answers": ["1234567"]}
    score = SCORERS["needle"]
    assert score(row, " 1234567. It").values == {"accuracy": 1.0, "first": 1.0}
    assert score(row, " 7654321, or 1234567").values == {"accuracy": 1.0, "first": 0.0}
    assert score(row, " 7654321").values == {"accuracy": 0.0, "first": 0.0}


def test_heldout_needles_are_in_their_suite_alone() -> None:
    for name in ("all", "recall", "base", "generator", "needles"):
        assert not [each.name for _, each in resolve(load_suite(name)) if each.name.endswith("_heldout")]
    assert all(each.name.endswith("_heldout") for _, each in resolve(load_suite("needles-heldout")))


@pytest.mark.data
def test_ids_are_equal_in_all_ways() -> None:
    folder = os.environ.get("EVALSUITE_DATA")
    if not folder:
        pytest.skip("EVALSUITE_DATA is not set")

    def ids(name: str) -> list[str]:
        found = documents(
            load_benchmark(name),
            data_dir=folder,
            limit=3,
            seed=53,
            context=512,
            count_tokens=lambda text: len(text.split()),
        )
        return [each.doc_id for each in found]

    assert ids("needle_single_inside") == ids("needle_single_outside")
    assert not set(ids("needle_single_inside")) & set(ids("needle_single_inside_heldout"))
