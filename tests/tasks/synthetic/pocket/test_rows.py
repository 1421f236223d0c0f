"""Rows of the pocket tasks: format, independence, published hashes."""

import pytest

from evalsuite.foundation import ConfigError, DataError, content_hash
from evalsuite.tasks.synthetic.pocket import CONTEXTS, TASKS, count_tokens, rows, score_response
from evalsuite.tasks.synthetic.pocket.question import split_of
from evalsuite.tasks.synthetic.pocket.scoring import RULES

FREE = [task for task in TASKS if not TASKS[task].contexts]
NEEDLES = [task for task in TASKS if TASKS[task].contexts]
PINNED = {
    "facts": "2446563551c679d1",
    "arithmetic": "a168421c224bc255",
    "cloze": "015decf527c1976a",
    "recall": "43b5f803d1ed0ae3",
    "instructions": "20def9a7d40a951c",
    "niah_single_1": "aa1988d18e2632a4",
    "niah_single_2": "1922f11305eefc64",
    "niah_single_3": "87ae9f9e20e2e825",
    "two_hop": "fe765d64512a5bde",
    "three_steps": "6de92ca6e0acdaab",
    "constraints": "3a293c3134803be4",
    "passage": "f43622589e4ce0a2",
    "choice": "6c56681d16197dc2",
    "recite": "4aafad26c9191128",
    "needles": "cfc6614d6a52f2af",
}
SHORTEST = [(task, None) for task in FREE] + [(task, TASKS[task].contexts[0]) for task in NEEDLES]


def test_pocket_tasks_and_contexts() -> None:
    assert list(TASKS) == [
        "facts",
        "arithmetic",
        "cloze",
        "recall",
        "instructions",
        "niah_single_1",
        "niah_single_2",
        "niah_single_3",
        "two_hop",
        "three_steps",
        "constraints",
        "passage",
        "choice",
        "recite",
        "needles",
    ]
    assert CONTEXTS == (128, 256, 512, 1024)
    assert TASKS["instructions"].protocols == ("generation",)


@pytest.mark.parametrize(("task", "context"), SHORTEST)
def test_tasks_have_two_hundred_distinct_documents(task: str, context: int | None) -> None:
    drawn = rows(task, count=200, context=context)
    assert len(drawn) == 200
    assert len({row["prompt"] for row in drawn}) == 200


@pytest.mark.parametrize(("task", "context"), SHORTEST)
def test_rows_are_well_formed(task: str, context: int | None) -> None:
    for row in rows(task, count=60, context=context):
        assert set(row) == {"prompt", "choices", "gold", "answer", "rule", "form"}
        assert row["rule"] in RULES
        assert (row["form"] is not None) == (row["rule"] == "format")
        assert not row["prompt"].endswith((" ", "\n"))
        if "loglikelihood" not in TASKS[task].protocols:
            assert row["choices"] is None
            assert row["gold"] is None
            continue
        assert len(set(row["choices"])) == 4
        assert all(choice.startswith(" ") and "\n" not in choice for choice in row["choices"])
        # Exactly one choice is correct by the rule that scores responses.
        assert [score_response(row, choice).correct for choice in row["choices"]].index(True) == row["gold"]
        assert sum(score_response(row, choice).correct for choice in row["choices"]) == 1


@pytest.mark.parametrize(("task", "context"), SHORTEST)
def test_answers_fit_max_new_tokens(task: str, context: int | None) -> None:
    for row in rows(task, count=100, context=context):
        longest = max(row["choices"] or [f" {row['answer']}"], key=count_tokens)
        assert count_tokens(f"{longest}\n") <= TASKS[task].max_new_tokens


@pytest.mark.parametrize(("task", "context"), SHORTEST)
def test_rows_are_independent(task: str, context: int | None) -> None:
    twelve = rows(task, count=12, context=context)
    assert rows(task, count=5, context=context) == twelve[:5]
    assert rows(task, count=12, context=context, seed=1) != twelve
    if context is not None:
        rows(task, count=3, context=512)
        assert rows(task, count=12, context=context) == twelve


@pytest.mark.parametrize(("task", "context"), SHORTEST)
def test_rows_belong_to_the_evaluation_split(task: str, context: int | None) -> None:
    for seed in (0, 3):
        drawn = rows(task, count=30, context=context, seed=seed)
        assert {split_of(row["prompt"], row["answer"]) for row in drawn} == {"evaluation"}


def test_documents_match_published_hashes() -> None:
    """Scores of different versions are comparable while these hashes hold."""
    hashes = {task: content_hash(rows(task, count=50, context=context)) for task, context in SHORTEST}
    assert hashes == PINNED


def test_invalid_requests_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'recall'"):
        rows("recal", count=1)
    with pytest.raises(ConfigError, match="takes a context of tokens"):
        rows("niah_single_1", count=1)
    with pytest.raises(ConfigError, match="takes no context"):
        rows("facts", count=1, context=128)
    with pytest.raises(ConfigError, match="use at least"):
        rows("niah_single_1", count=1, context=40)
    with pytest.raises(DataError, match="not 100000"):
        rows("facts", count=100_000)
