"""Batches contain every row once, respect the budget and have little padding."""

from hypothesis import given
from hypothesis import strategies as st

from evalsuite.models.inference.batching import make_length_batches
from evalsuite.models.inference.torch.prefix_groups import (
    MIN_GROUP_SIZE,
    MIN_PREFIX_TOKENS,
    build_prefix_groups,
    group_by_prefix,
)

LENGTHS = st.lists(st.integers(1, 300), max_size=60)


@given(LENGTHS, st.integers(1, 2000), st.integers(0, 500))
def test_every_row_once_within_the_budget(lengths: list[int], budget: int, floor: int) -> None:
    found = make_length_batches(lengths, max_tokens=budget, min_tokens=floor)
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
    found = make_length_batches([5, 50, 20, 49], max_tokens=100)
    assert found[0] == [1, 3]


def test_extra_tokens_count_but_are_not_padded() -> None:
    assert make_length_batches([10, 10, 10], max_tokens=60, unpadded_tokens=[20, 20, 20]) == [[0, 1], [2]]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 1), min_size=1, max_size=90)), max_size=30)
)
def test_groups_have_the_stated_prefix(drawn: list[tuple[int, list[int]]]) -> None:
    contexts = [(*[7] * 63, *[kind] * kind, *own) for kind, own in drawn]
    found = group_by_prefix(contexts)
    assert sorted(number for _, numbers in found for number in numbers) == list(range(len(contexts)))
    for shared, numbers in found:
        first = contexts[numbers[0]]
        assert all(contexts[number][:shared] == first[:shared] for number in numbers)
        assert all(len(contexts[number]) > shared for number in numbers)
        assert shared == 0 or (shared >= MIN_PREFIX_TOKENS and len(numbers) >= MIN_GROUP_SIZE)


@given(
    st.lists(st.tuples(st.integers(0, 90), st.lists(st.integers(0, 1), min_size=1, max_size=30)), max_size=20)
)
def test_prefix_groups_save_tokens(drawn: list[tuple[int, list[int]]]) -> None:
    # Haystacks with a needle at different depths.
    prompts = [(*range(10, 70 + depth), *own) for depth, own in drawn]
    saved = []
    for allow_partial in (False, True):
        found = build_prefix_groups(prompts, allow_partial=allow_partial)
        assert sorted(number for group in found for number in group.shared_lengths) == list(
            range(len(prompts))
        )
        for group in found:
            for number, shared in group.shared_lengths.items():
                assert 0 <= shared < len(prompts[number])
                assert prompts[number][:shared] == group.tokens[:shared]
                assert allow_partial or shared == len(group.tokens)
        saved.append(sum(sum(group.shared_lengths.values()) - len(group.tokens) for group in found))
    assert saved[1] >= saved[0] >= 0
