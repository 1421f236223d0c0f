"""Which contexts a checkpoint reads, and what is out of distribution."""

import pytest

from evalsuite.foundation.context_limits import ContextLimit, context_name


@pytest.mark.parametrize(
    ("positions", "max_length", "extension", "longest"),
    [
        (2048, None, None, 2048),
        (2048, 2048, None, 2048),
        (2048, 1024, None, 2048),
        (2048, 4096, 4096, 4096),
        (None, 4096, 4096, 4096),
        (None, None, None, None),
    ],
)
def test_only_more_than_the_stated_positions_extends(
    positions: int | None, max_length: int | None, extension: int | None, longest: int | None
) -> None:
    limit = ContextLimit(positions, max_length)
    assert (limit.extension, limit.longest) == (extension, longest)
    assert limit.reads(None)
    assert limit.reads(longest or 10**9)
    assert limit.reads((longest or 10**9) + 1) == (longest is None)


def test_out_of_distribution_begins_after_the_stated_positions() -> None:
    limit = ContextLimit(2048, 4096)
    assert [limit.is_beyond(tokens) for tokens in (1, 2048, 2049)] == [False, False, True]
    assert not ContextLimit(2048, 2048).is_beyond(4096)
    assert not ContextLimit(None, 4096).is_beyond(4096)
    assert limit.reason == "supports at most 4,096 tokens"
    assert context_name("niah_single_1", 16384) == "niah_single_1@16384"
