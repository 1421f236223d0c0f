"""Budgets, layer sets and the early-stop rule, against published numbers."""

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalsuite.distill.selection.layer_sets import (
    StopRule,
    Window,
    jaccard,
    one_swap_jaccard,
    ranks,
    softmax_budget,
    top_layers,
)
from evalsuite.distill.selection.selectors.fixed_sets import Fixed, published_sets, uniform_layers
from evalsuite.distill.selection.selectors.smart import smart_layers
from evalsuite.foundation import ConfigError


def fixed_layers(layers: int, k: int, named: str | None = None, given: list[int] | None = None):
    return Fixed(set=named, layers=given).select(SimpleNamespace(layers=layers), k).layers


@pytest.mark.parametrize(
    ("layers", "ratio", "k"),
    [
        *((36, ratio, k) for ratio, k in (("1:8", 4), ("1:3", 9), ("1:2", 12), ("1:1", 18))),
        *((36, ratio, k) for ratio, k in ((0.125, 5), (0.25, 9), (0.33, 12), (0.5, 18))),
        *((28, ratio, k) for ratio, k in (("1:8", 3), ("1:3", 7), ("1:2", 9), ("1:1", 14), (0.125, 4))),
        (4, 0.25, 1),
        (4, "1:1", 2),
    ],
)
def test_paper_ratios_give_paper_budgets(layers, ratio, k):
    assert softmax_budget(layers, ratio=ratio) == k


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget": 5}, "--budget 5: must be between 1 and 4"),
        ({"budget": 0}, "--budget 0"),
        ({"ratio": 0.01}, "gives 0"),
        ({"ratio": 1.5}, "expected a share"),
        ({"ratio": "1:0:1"}, "expected a share"),
        ({"ratio": "nan"}, "expected a share"),
        ({}, "either --budget K or --ratio"),
        ({"budget": 1, "ratio": 0.5}, "either --budget K or --ratio"),
    ],
)
def test_impossible_budget_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        softmax_budget(4, **given)


@given(st.integers(1, 64).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))))
def test_uniform_layers_are_even(size):
    layers, k = size
    chosen = uniform_layers(layers, k)
    assert len(set(chosen)) == k
    assert chosen[0] == 0
    assert chosen[-1] < layers
    gaps = {b - a for a, b in zip(chosen, (*chosen[1:], layers), strict=True)}
    assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize(
    ("name", "same", "different"),
    [
        ("kl-guided-qwen-uniform", {9, 12, 18}, {5}),
        ("gendistill-uniform", {9}, {5, 7}),
        ("kl-guided-llama-uniform", {9}, {4, 7, 14}),
    ],
)
def test_agreement_of_uniform_with_published_sets(name, same, different):
    """Holds the differences that the docstring of `uniform_layers` lists."""
    sets = published_sets()[name].sets
    agrees = {
        k for k, printed in sets.items() if tuple(printed) == uniform_layers(published_sets()[name].layers, k)
    }
    assert agrees == same
    assert set(sets) - agrees == different


def test_published_sets_match_table_11():
    """All 15 sets, against the table if available, otherwise against one row per method."""
    methods = {
        "Uniform": "uniform",
        "Learned Selection (Greedy Aggregate, KL)": "learned",
        "Greedy": "greedy",
        "Beam Search Add": "beam-add",
        "Beam Search Replace": "beam-replace",
    }
    table = Path(__file__).parent / "table11.csv"
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == 15
    for row in rows:
        sets = published_sets()[f"gendistill-{methods[row['method']]}"].sets
        assert sets[int(row["n_attention_layers"])] == [int(layer) for layer in row["layer_indices"].split()]


def test_published_sets_are_well_formed():
    for name, found in published_sets().items():
        for k, layers in found.sets.items():
            assert layers == sorted(set(layers)), name
            assert len(layers) == k, name
            assert set(layers) <= set(range(found.layers)), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"named": "gendistil-greedy"}, "did you mean 'gendistill-greedy'"),
        ({"named": "kl-guided-qwen-uniform"}, "36 layers of Qwen"),
        ({"named": "gendistill-greedy", "k": 6}, "budgets: 5, 7, 9"),
        ({"given": [1, 28]}, r"layers 0 to 27, not \[28\]"),
        ({"given": [1, 1]}, "1 different layers for a budget of 2"),
        ({}, "give a published set"),
    ],
)
def test_invalid_fixed_list_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        fixed_layers(28, **{"k": 2, **changes})


def test_fixed_list_is_sorted():
    assert fixed_layers(28, 2, given=[9, 3]) == (3, 9)
    assert fixed_layers(36, 3, named="postnas-qwen-3b") == (17, 20, 32)


def test_smart_reproduces_published_sets():
    """The rule gives each published SMART set if its layers are the most sensitive."""
    for k, layers in published_sets()["kl-guided-llama-smart"].sets.items():
        scores = [1.0 if layer in layers else 0.0 for layer in range(28)]
        assert smart_layers(scores, k) == tuple(layers)


def test_smart_maximizes_sensitivity_among_near_uniform_placements():
    scores = [0.0] * 12
    scores[1], scores[10], scores[2] = 3.0, 2.0, 9.0
    # 4 of 12: terminals are the best of 0–2 and of 9–11, and 5 other layers leave gaps of 1, 2 and 2.
    placements = [(2, 4, 7, 10), (2, 5, 7, 10), (2, 5, 8, 10)]
    assert smart_layers(scores, 4) in placements
    scores[3] = scores[6] = scores[9] = 8.0
    assert smart_layers(scores, 4) != placements[0]  # the last third now ends with layer 9
    assert smart_layers(scores, 4)[-1] == 9
    scores[3] = scores[6] = scores[9] = 0.0
    for placement in placements:
        favoured = [score + 0.1 * (layer in placement) for layer, score in enumerate(scores)]
        assert smart_layers(favoured, 4) == placement
    assert smart_layers(scores, 1) == (2,)
    assert smart_layers(scores, 12) == tuple(range(12))


@given(
    st.integers(1, 20).flatmap(
        lambda n: st.tuples(st.lists(st.floats(-5, 5), min_size=n, max_size=n), st.integers(1, n))
    )
)
def test_smart_selects_k_layers(drawn):
    scores, k = drawn
    chosen = smart_layers(scores, k)
    assert len(set(chosen)) == k
    assert list(chosen) == sorted(chosen)


def test_top_layers_tie_breaking():
    assert top_layers([1.0, 3.0, 3.0, 2.0], 2) == (1, 2)
    assert top_layers([1.0, 1.0, 1.0], 1) == (0,)
    assert top_layers([1.0, 1.0, 1.0], 1, ties=[0.0, 0.0, 2.0]) == (2,)
    assert top_layers([float("nan"), 0.0, -1.0], 2) == (1, 2)


def test_tied_ranks_are_averaged():
    assert ranks([5.0, 1.0, 5.0, 0.0]) == [1.5, 3.0, 1.5, 4.0]


def test_one_swap_jaccard_values():
    for k, printed in ((9, 0.80), (7, 0.75)):
        one = list(range(k))
        assert jaccard(one, [*one[1:], 99]) == pytest.approx(printed)
        assert one_swap_jaccard(k) == pytest.approx(printed)


def settled(k: int, last: int) -> tuple[int, ...]:
    return (*range(k - 1), last)


def test_stop_rule_first_snapshot():
    """K = 9: noise for 5 snapshots, then a stable set with one deviating snapshot."""
    noise = [tuple(range(i, i + 9)) for i in (20, 14, 9, 5, 3)]
    swapped = [settled(9, 8)] * 3 + [settled(9, 30)] + [settled(9, 8)] * 20
    # One deviating set among ten: 9 pairs of 0.8 and 36 of 1 give 0.96; the window is full at 5 + 10.
    rule = StopRule()
    assert rule.first([*noise, *swapped], 9) == 5 + 10 - 1
    window = rule.last([*noise, *swapped][:15])
    assert window.jaccard == pytest.approx((36 + 9 * 0.8) / 45)
    assert (window.backbone, window.union) == (8, 10)


def test_no_stop_while_two_layers_are_undecided():
    """High mean similarity, but two sets deviate in different layers: the union is K + 2."""
    sets = [settled(9, 8)] * 8 + [settled(9, 30), settled(9, 31)]
    window = Window(sets=tuple(sets))
    assert window.jaccard > 0.90
    assert (window.backbone, window.union) == (8, 11)
    assert StopRule().first(sets, 9) is None


def test_no_stop_while_the_last_slot_alternates():
    """Two layers alternate: 25 of 45 pairs are one swap apart, mean 0.889."""
    sets = [settled(9, 8 if i % 2 else 30) for i in range(40)]
    assert Window(sets=tuple(sets[:10])).jaccard == pytest.approx((20 + 25 * 0.8) / 45)
    assert StopRule().first(sets, 9) is None


def test_stop_on_last_slot_tie():
    """Appendix B's optional rule: the union is K + 1 and the set has just changed."""
    rule = StopRule(stop_on_last_slot_tie=True)
    sets = [settled(9, 8 if i % 2 else 30) for i in range(40)]
    assert rule.first(sets, 9) == 9
    assert sets[9] == settled(9, 8)
    # The last slot changed once, long ago: no tie, so the main rule decides.
    calm = [settled(9, 30)] * 3 + [settled(9, 8)] * 20
    assert rule.first(calm, 9) == StopRule().first(calm, 9)
    # Three layers alternate: neither rule stops.
    three = [settled(9, 8 + i % 3) for i in range(40)]
    assert rule.first(three, 9) is None
    # Two slots alternate between two layers each: the union is K + 1, but the backbone is below K - 1.
    ring = [tuple(layer for layer in range(10) if layer != i % 3) for i in range(40)]
    assert Window(sets=tuple(ring[:10])).union == 10
    assert rule.first(ring, 9) is None


def test_no_stop_before_the_window_is_full():
    assert StopRule().first([settled(4, 3)] * 9, 4) is None
    assert StopRule().first([settled(4, 3)] * 10, 4) == 9
    assert StopRule(window=3).first([settled(4, 3)] * 10, 4) == 2
