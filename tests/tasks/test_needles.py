"""Needles: the length holds, the needle stands where the row says, documents do not depend on each other."""

from collections.abc import Callable

import pytest

from evalsuite.foundation import ConfigError
from evalsuite.tasks.needles import FILLER, RESERVE, rows
from evalsuite.tasks.pocket import count_tokens


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize("count", [words, count_tokens])
@pytest.mark.parametrize("context", [512, 1024])
def test_a_prompt_fits_and_one_more_filler_would_not(count: Callable[[str], int], context: int) -> None:
    for row in rows("niah_single_1", seed=0, count=8, context=context, count_tokens=count):
        assert count(row["prompt"]) + RESERVE <= context
        assert count(row["prompt"].replace(FILLER, FILLER + "\n" + FILLER, 1)) + RESERVE > context
        _, *lines, question = row["prompt"].split("\n")
        assert len(lines) == row["units"] + 1
        assert row["answers"][0] in lines[row["position"]]
        assert lines.count(FILLER) == row["units"]
        key = lines[row["position"]].split(" for ")[1].split(" is: ")[0]
        assert question.endswith(f"The special magic number for {key} mentioned in the provided text is")


def test_documents_do_not_depend_on_number_or_length() -> None:
    few = rows("niah_single_1", seed=0, count=3, context=512, count_tokens=words)
    assert few == rows("niah_single_1", seed=0, count=6, context=512, count_tokens=words)[:3]
    assert few != rows("niah_single_1", seed=1, count=3, context=512, count_tokens=words)
    many = rows("niah_single_1", seed=0, count=40, context=512, count_tokens=words)
    positions = {row["position"] for row in many}
    assert len(positions) > 5


def test_a_context_that_is_too_small_is_refused() -> None:
    with pytest.raises(ConfigError, match="128 tokens do not hold the question"):
        rows("niah_single_1", seed=0, count=1, context=128, count_tokens=words)
    with pytest.raises(ConfigError, match="unknown kind 'niah_single_9'"):
        rows("niah_single_9", seed=0, count=1, context=512, count_tokens=words)
