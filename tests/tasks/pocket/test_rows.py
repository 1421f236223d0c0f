"""Rows: what they look like, and that each depends on nothing but its own key."""

import pytest

from evalsuite.foundation import ConfigError, DataError, content_hash
from evalsuite.tasks.pocket import CONTEXTS, KINDS, count_tokens, judge, rows
from evalsuite.tasks.pocket.answers import RULES
from evalsuite.tasks.pocket.drawing import split_of

FREE = [kind for kind in KINDS if not KINDS[kind].contexts]
NEEDLES = [kind for kind in KINDS if KINDS[kind].contexts]
PUBLISHED = {
    "facts": "2446563551c679d1",
    "arithmetic": "a168421c224bc255",
    "cloze": "015decf527c1976a",
    "recall": "43b5f803d1ed0ae3",
    "instructions": "20def9a7d40a951c",
    "niah_single_1": "aa1988d18e2632a4",
    "niah_single_2": "1922f11305eefc64",
    "niah_single_3": "87ae9f9e20e2e825",
}
SHORTEST = [(kind, None) for kind in FREE] + [(kind, CONTEXTS[0]) for kind in NEEDLES]


def test_the_benchmarks_of_the_pocket_world() -> None:
    assert list(KINDS) == [
        "facts",
        "arithmetic",
        "cloze",
        "recall",
        "instructions",
        "niah_single_1",
        "niah_single_2",
        "niah_single_3",
    ]
    assert CONTEXTS == (128, 256, 512, 1024)
    assert KINDS["instructions"].protocols == ("generation",)


@pytest.mark.parametrize(("kind", "context"), SHORTEST)
def test_two_hundred_different_documents(kind: str, context: int | None) -> None:
    drawn = rows(kind, count=200, context=context)
    assert len(drawn) == 200
    assert len({row["prompt"] for row in drawn}) == 200


@pytest.mark.parametrize(("kind", "context"), SHORTEST)
def test_rows_are_well_formed(kind: str, context: int | None) -> None:
    for row in rows(kind, count=60, context=context):
        assert set(row) == {"prompt", "choices", "gold", "answer", "rule", "form"}
        assert row["rule"] in RULES
        assert (row["form"] is not None) == (row["rule"] == "format")
        assert not row["prompt"].endswith((" ", "\n"))
        if "loglikelihood" not in KINDS[kind].protocols:
            assert row["choices"] is None
            assert row["gold"] is None
            continue
        assert len(set(row["choices"])) == 4
        assert all(choice.startswith(" ") and "\n" not in choice for choice in row["choices"])
        # Exactly one choice is right by the rule that judges written answers.
        assert [judge(row, choice).correct for choice in row["choices"]].index(True) == row["gold"]
        assert sum(judge(row, choice).correct for choice in row["choices"]) == 1


@pytest.mark.parametrize(("kind", "context"), SHORTEST)
def test_an_answer_fits_the_tokens_it_is_given(kind: str, context: int | None) -> None:
    for row in rows(kind, count=100, context=context):
        longest = max(row["choices"] or [f" {row['answer']}"], key=count_tokens)
        assert count_tokens(f"{longest}\n") <= KINDS[kind].max_new_tokens


@pytest.mark.parametrize(("kind", "context"), SHORTEST)
def test_a_row_depends_on_its_own_key_alone(kind: str, context: int | None) -> None:
    twelve = rows(kind, count=12, context=context)
    assert rows(kind, count=5, context=context) == twelve[:5]
    assert rows(kind, count=12, context=context, seed=1) != twelve
    if context is not None:
        rows(kind, count=3, context=512)
        assert rows(kind, count=12, context=context) == twelve


@pytest.mark.parametrize(("kind", "context"), SHORTEST)
def test_rows_belong_to_the_evaluation_split(kind: str, context: int | None) -> None:
    for seed in (0, 3):
        drawn = rows(kind, count=30, context=context, seed=seed)
        assert {split_of(row["prompt"], row["answer"]) for row in drawn} == {"evaluation"}


def test_the_published_documents_do_not_change() -> None:
    """Scores of different versions are comparable as long as these hashes hold."""
    hashes = {kind: content_hash(rows(kind, count=50, context=context)) for kind, context in SHORTEST}
    assert hashes == PUBLISHED


def test_bad_requests_are_refused() -> None:
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
