"""Every kind: the stated length holds, documents stand alone, and they never change."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from evalsuite.foundation import ConfigError, content_hash
from evalsuite.tasks.benchmark import all_benchmarks
from evalsuite.tasks.pocket import count_tokens
from evalsuite.tasks.sized import RESERVES, rows
from evalsuite.tasks.sized.chains import NOISE
from evalsuite.tasks.sized.counting import LONG_FROM
from evalsuite.tasks.sized.fitting import fill

Read = dict[str, list[list[dict[str, Any]]]]


def words(text: str) -> int:
    return len(text.split())


def lines(text: str) -> int:
    return text.count("\n")


UNITS: dict[str, Callable[[str], int]] = {
    **{kind: words for kind in RESERVES if kind.startswith("niah_")},
    "niah_single_1": lines,
    "niah_multikey_2": lines,
    "niah_multikey_3": lines,
    "vt": lambda text: text.count(NOISE.strip()),
    "cwe": lambda text: len(re.findall(r"\d+\. ", text)),
    "fwe": words,
    "qa_1": lambda text: text.count("Document "),
    "qa_2": lambda text: text.count("Document "),
    "kv_retrieval": lambda text: text.count('": "'),
    "mqar": lambda text: (lines(text) + 1) // 2,
}
"""How many units of filler a prompt has, up to what is the same in all prompts of a document."""


@pytest.mark.parametrize("kind", sorted(RESERVES))
@pytest.mark.parametrize(("count", "context"), [(words, 512), (words, 1024), (count_tokens, 2048)])
def test_prompt_and_reserve_fit_and_one_more_unit_would_not(
    kind: str, count: Callable[[str], int], context: int, read: Read
) -> None:
    if count is count_tokens and kind in ("cwe", "niah_multikey_3", "kv_retrieval"):
        context *= 4  # the pocket tokenizer reads a letter at a time
    seen: list[tuple[int, str]] = []

    def counting(text: str) -> int:
        seen.append((count(text), text))
        return seen[-1][0]

    (row,) = rows(kind, seed=1, count=1, context=context, count_tokens=counting, read=read.get(kind, ()))
    room = context - RESERVES[kind]
    fitting = [text for length, text in seen if length <= room]
    longer = min((text for length, text in seen if length > room), key=len)
    whole = max(fitting, key=len)
    assert row["prompt"] == whole if kind != "mqar" else whole.startswith(row["prompt"])
    more = UNITS[kind](longer) - UNITS[kind](whole)
    repeated = 3 if kind == "cwe" and context >= LONG_FROM else 1
    assert more >= 1 if kind == "fwe" else more == repeated
    if not kind.startswith("qa_"):
        assert all(answer in row["prompt"] for answer in row["answers"])


@pytest.mark.parametrize("kind", sorted(RESERVES))
def test_documents_do_not_depend_on_each_other(kind: str, read: Read) -> None:
    def drawn(count: int, seed: int) -> list[dict[str, Any]]:
        return rows(kind, seed=seed, count=count, context=600, count_tokens=words, read=read.get(kind, ()))

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
"""Hashes of two documents each: what was frozen once stays as it is."""


@pytest.mark.parametrize("kind", sorted(RESERVES))
def test_documents_never_change(kind: str, read: Read) -> None:
    found = rows(kind, seed=0, count=2, context=1024, count_tokens=words, read=read.get(kind, ()))
    assert content_hash(found) == GOLDEN[kind]


@pytest.mark.parametrize("kind", sorted(RESERVES))
def test_a_context_that_is_too_small_is_refused(kind: str, read: Read) -> None:
    with pytest.raises(ConfigError, match=f"{kind}: .* do not hold the question"):
        rows(kind, seed=0, count=1, context=RESERVES[kind] + 7, count_tokens=words, read=read.get(kind, ()))


def test_what_cannot_be_made_is_refused(read: Read) -> None:
    with pytest.raises(ConfigError, match="unknown kind 'niah_single_9'; did you mean 'niah_single_"):
        rows("niah_single_9", seed=0, count=1, context=512, count_tokens=words)
    with pytest.raises(ConfigError, match="niah_single_2: its benchmark must read one split"):
        rows("niah_single_2", seed=0, count=1, context=512, count_tokens=words)
    with pytest.raises(ConfigError, match="the tokenizer counts no tokens"):
        rows("niah_single_1", seed=0, count=1, context=512, count_tokens=lambda text: 0)
    with pytest.raises(ConfigError, match="more pairs than the"):
        rows("mqar", seed=0, count=1, context=100_000, count_tokens=words)


def test_filling_finds_the_end_wherever_it_is() -> None:
    for room in range(3, 400, 7):
        for step in (1, 3, 50):
            found = fill(lambda units, step=step: "x " * (3 + units * step), words, room, least=0, most=None)
            assert found == (room - 3) // step
    assert fill(lambda units: "x " * units, words, 100, least=0, most=20) == 20
    assert fill(lambda units: "x " * units, words, 4, least=5, most=None) == -1


def test_benchmarks_leave_their_reserve_to_the_answer() -> None:
    sized = [each for each in all_benchmarks() if each.generated and each.generated.generator == "sized"]
    assert {each.generated.kind for each in sized if each.generated} == set(RESERVES)
    for each in sized:
        assert each.generated is not None
        assert each.generation is not None
        assert each.generation.sampling.max_new_tokens == RESERVES[each.generated.kind]
