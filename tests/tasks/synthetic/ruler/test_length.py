"""Every RULER task: prompt length, independence of documents, golden hashes."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from evalsuite.foundation import ConfigError, content_hash
from evalsuite.tasks.benchmark import all_benchmarks
from evalsuite.tasks.synthetic.pocket import count_tokens
from evalsuite.tasks.synthetic.ruler import TOKENS_TO_GENERATE, rows
from evalsuite.tasks.synthetic.ruler.aggregation import LONG_MIN_CONTEXT
from evalsuite.tasks.synthetic.ruler.fit_to_length import fit_to_length
from evalsuite.tasks.synthetic.ruler.variable_tracking import FILLER

Inputs = dict[str, list[list[dict[str, Any]]]]


def words(text: str) -> int:
    return len(text.split())


def lines(text: str) -> int:
    return text.count("\n")


UNITS: dict[str, Callable[[str], int]] = {
    **{task: words for task in TOKENS_TO_GENERATE if task.startswith(("niah_", "needle_"))},
    "niah_single_1": lines,
    "niah_multikey_2": lines,
    "niah_multikey_3": lines,
    "vt": lambda text: text.count(FILLER.strip()),
    "cwe": lambda text: len(re.findall(r"\d+\. ", text)),
    "fwe": words,
    "qa_1": lambda text: text.count("Document "),
    "qa_2": lambda text: text.count("Document "),
    "kv_retrieval": lambda text: text.count('": "'),
    "mqar": lambda text: (lines(text) + 1) // 2,
}
"""Task → number of filler units in a prompt, up to a constant."""


@pytest.mark.parametrize("task", sorted(TOKENS_TO_GENERATE))
@pytest.mark.parametrize(("count", "context"), [(words, 512), (words, 1024), (count_tokens, 2048)])
def test_prompt_fits_and_one_more_unit_would_not(
    task: str, count: Callable[[str], int], context: int, inputs: Inputs
) -> None:
    if count is count_tokens and task in ("cwe", "niah_multikey_3", "kv_retrieval"):
        context *= 4  # the pocket tokenizer splits these words into letters
    seen: list[tuple[int, str]] = []

    def counting(text: str) -> int:
        seen.append((count(text), text))
        return seen[-1][0]

    (row,) = rows(task, seed=1, count=1, context=context, count_tokens=counting, inputs=inputs.get(task, ()))
    room = context - TOKENS_TO_GENERATE[task]
    fitting = [text for length, text in seen if length <= room]
    longer = min((text for length, text in seen if length > room), key=len)
    longest = max(fitting, key=len)
    assert row["prompt"] == longest if task != "mqar" else longest.startswith(row["prompt"])
    more = UNITS[task](longer) - UNITS[task](longest)
    repeated = 3 if task == "cwe" and context >= LONG_MIN_CONTEXT else 1
    assert more >= 1 if task == "fwe" else more == repeated
    if not task.startswith("qa_"):
        assert all(answer in row["prompt"] for answer in row["answers"])


@pytest.mark.parametrize("task", sorted(TOKENS_TO_GENERATE))
def test_documents_are_independent(task: str, inputs: Inputs) -> None:
    def drawn(count: int, seed: int) -> list[dict[str, Any]]:
        return rows(
            task, seed=seed, count=count, context=600, count_tokens=words, inputs=inputs.get(task, ())
        )

    many = drawn(5, 0)
    assert len(many) == 5
    assert drawn(2, 0) == many[:2]
    assert len({row["prompt"] for row in many}) == 5
    assert drawn(2, 1) != many[:2]


GOLDEN = {
    "cwe": "71349adda58ba35d",
    "fwe": "32929ef462a65936",
    "kv_retrieval": "5fba9de520278d51",
    "mqar": "a0e3a062eba666f0",
    "needle_multikey": "fe3883ccaebba5fb",
    "needle_multikey_heldout": "a52af487551f3d1a",
    "needle_single": "0f2a58a315fd1261",
    "needle_single_heldout": "3084ec2af2c1059b",
    "niah_multikey_1": "08387443606cebcc",
    "niah_multikey_2": "4c4cfa9f11716a67",
    "niah_multikey_3": "5fe89642ea7e765e",
    "niah_multiquery": "e8a013c15332fd05",
    "niah_multivalue": "a745b6cdc0b7f777",
    "niah_single_1": "f5d91a91993055db",
    "niah_single_2": "53c56808e2e63af8",
    "niah_single_3": "0cb981f22b59809b",
    "qa_1": "9e37718172a64f87",
    "qa_2": "71c2e0ac8a508fd4",
    "vt": "3ec3e662b392c415",
}
"""Hashes of two documents per task."""


@pytest.mark.parametrize("task", sorted(TOKENS_TO_GENERATE))
def test_documents_match_golden_hashes(task: str, inputs: Inputs) -> None:
    found = rows(task, seed=0, count=2, context=1024, count_tokens=words, inputs=inputs.get(task, ()))
    assert content_hash(found) == GOLDEN[task]


@pytest.mark.parametrize("task", sorted(TOKENS_TO_GENERATE))
def test_too_short_context_is_refused(task: str, inputs: Inputs) -> None:
    with pytest.raises(ConfigError, match=f"{task}: .* too few for the question"):
        rows(
            task,
            seed=0,
            count=1,
            context=TOKENS_TO_GENERATE[task] + 7,
            count_tokens=words,
            inputs=inputs.get(task, ()),
        )


def test_invalid_generation_requests_are_refused(inputs: Inputs) -> None:
    with pytest.raises(ConfigError, match="unknown RULER task 'niah_single_9'; did you mean 'niah_single_"):
        rows("niah_single_9", seed=0, count=1, context=512, count_tokens=words)
    with pytest.raises(ConfigError, match=r"niah_single_2: 'generated\.inputs' must list one split"):
        rows("niah_single_2", seed=0, count=1, context=512, count_tokens=words)
    with pytest.raises(ConfigError, match="the tokenizer counts no tokens"):
        rows("niah_single_1", seed=0, count=1, context=512, count_tokens=lambda text: 0)
    with pytest.raises(ConfigError, match="pairs of the word list"):
        rows("mqar", seed=0, count=1, context=100_000, count_tokens=words)


def test_fit_to_length_finds_the_largest_fit() -> None:
    for room in range(3, 400, 7):
        for step in (1, 3, 50):
            found = fit_to_length(
                lambda units, step=step: "x " * (3 + units * step), words, room, min_units=0, max_units=None
            )
            assert found == (room - 3) // step
    assert fit_to_length(lambda units: "x " * units, words, 100, min_units=0, max_units=20) == 20
    assert fit_to_length(lambda units: "x " * units, words, 4, min_units=5, max_units=None) == -1


def test_benchmarks_generate_as_many_tokens_as_are_reserved() -> None:
    ruler = [each for each in all_benchmarks() if each.generated and each.generated.generator == "ruler"]
    assert {each.generated.task for each in ruler if each.generated} == set(TOKENS_TO_GENERATE)
    for each in ruler:
        assert each.generated is not None
        if each.generation is None:  # values outside the text: log-likelihood of other benchmarks' prompts
            assert each.name.startswith("needle_")
            continue
        assert each.generation.sampling.max_new_tokens == TOKENS_TO_GENERATE[each.generated.task]
