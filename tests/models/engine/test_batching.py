"""Batches hold every row once, keep to the budget, and are hardly padded."""

from hypothesis import given
from hypothesis import strategies as st

from evalsuite.models.engine.batching import batches
from evalsuite.models.engine.prefixes import FEWEST, SHORTEST, families, trunks

LENGTHS = st.lists(st.integers(1, 300), max_size=60)


@given(LENGTHS, st.integers(1, 2000), st.integers(0, 500))
def test_every_row_once_within_the_budget(lengths: list[int], budget: int, floor: int) -> None:
    found = batches(lengths, budget=budget, floor=floor)
    assert sorted(row for batch in found for row in batch) == list(range(len(lengths)))
    for batch in found:
        longest = max(lengths[row] for row in batch)
        padded = longest * len(batch)
        assert len(batch) == 1 or padded <= budget
        # Without its last row a batch was still below the floor, or padded by at most a tenth.
        rest = batch[:-1]
        if rest:
            assert longest * len(batch) <= floor or sum(lengths[row] for row in batch) >= 0.9 * padded


def test_longest_first() -> None:
    found = batches([5, 50, 20, 49], budget=100)
    assert found[0] == [1, 3]


def test_extra_tokens_count_but_are_not_padded() -> None:
    assert batches([10, 10, 10], budget=60, extra=[20, 20, 20]) == [[0, 1], [2]]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 1), min_size=1, max_size=90)), max_size=30)
)
def test_families_share_what_they_say(drawn: list[tuple[int, list[int]]]) -> None:
    contexts = [(*[7] * 63, *[kind] * kind, *own) for kind, own in drawn]
    found = families(contexts)
    assert sorted(number for _, numbers in found for number in numbers) == list(range(len(contexts)))
    for shared, numbers in found:
        first = contexts[numbers[0]]
        assert all(contexts[number][:shared] == first[:shared] for number in numbers)
        assert all(len(contexts[number]) > shared for number in numbers)
        assert shared == 0 or (shared >= SHORTEST and len(numbers) >= FEWEST)


@given(
    st.lists(st.tuples(st.integers(0, 90), st.lists(st.integers(0, 1), min_size=1, max_size=30)), max_size=20)
)
def test_trunks_save_what_they_say(drawn: list[tuple[int, list[int]]]) -> None:
    # Hay that a needle ends at a depth of its own.
    prompts = [(*range(10, 70 + depth), *own) for depth, own in drawn]
    saved = []
    for cut in (False, True):
        found = trunks(prompts, cut=cut)
        assert sorted(number for trunk in found for number in trunk.shares) == list(range(len(prompts)))
        for trunk in found:
            for number, shared in trunk.shares.items():
                assert 0 <= shared < len(prompts[number])
                assert prompts[number][:shared] == trunk.tokens[:shared]
                assert cut or shared == len(trunk.tokens)
        saved.append(sum(sum(trunk.shares.values()) - len(trunk.tokens) for trunk in found))
    assert saved[1] >= saved[0] >= 0
