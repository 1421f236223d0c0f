"""Rolling Jaccard, backbone and union: closed forms of the KL-guided paper's appendix B."""

import pytest

from evalsuite.reports.statistics.agreement import jaccard, stability


@pytest.mark.parametrize(("kept", "expected"), [(9, 0.80), (7, 0.75)])
def test_one_swap_is_k_minus_1_over_k_plus_1(kept: int, expected: float) -> None:
    assert jaccard(range(kept), [*range(kept - 1), 99]) == pytest.approx(expected)


def test_stability_uses_last_window() -> None:
    sets = [(0, 1), (0, 2), (0, 1), (0, 1)]
    found = stability(sets, window=3)
    assert [each.jaccard for each in found] == [
        None,
        pytest.approx(1 / 3),
        pytest.approx(5 / 9),
        pytest.approx(5 / 9),
    ]
    assert [(each.backbone, each.union) for each in found] == [(2, 2), (1, 3), (1, 3), (1, 3)]
    settled = stability([*sets, (0, 1)], window=3)[-1]
    assert (settled.jaccard, settled.backbone, settled.union) == (1, 2, 2)


def test_window_below_two_is_refused() -> None:
    assert jaccard([], []) == 1
    assert stability([]) == []
    with pytest.raises(ValueError, match="compares nothing"):
        stability([(1,)], window=1)
