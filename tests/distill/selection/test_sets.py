"""Budgets, sets and the early-stop rule, against the numbers that the papers print."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalsuite.distill.selection.fixed import fixed_layers, published
from evalsuite.distill.selection.sets import (
    StopRule,
    Window,
    jaccard,
    one_swap_jaccard,
    ranks,
    softmax_budget,
    top_layers,
)
from evalsuite.distill.selection.smart import smart_layers
from evalsuite.distill.selection.uniform import uniform_layers
from evalsuite.foundation import ConfigError


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
def test_ratios_of_the_paper_give_its_budgets(layers, ratio, k):
    assert softmax_budget(layers, ratio=ratio) == k


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget": 5}, "--budget 5: the teacher has 4 layers"),
        ({"budget": 0}, "--budget 0"),
        ({"ratio": 0.01}, "comes to 0"),
        ({"ratio": 1.5}, "expected a share"),
        ({"ratio": "1:0:1"}, "expected a share"),
        ({"ratio": "nan"}, "expected a share"),
        ({}, "either --budget K or --ratio"),
        ({"budget": 1, "ratio": 0.5}, "either --budget K or --ratio"),
    ],
)
def test_a_budget_that_cannot_be_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        softmax_budget(4, **given)


@given(st.integers(1, 64).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))))
def test_uniform_layers_are_even_and_as_many_as_asked(size):
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
def test_where_uniform_agrees_with_what_is_printed(name, same, different):
    """`uniform_layers` says in its docstring where it differs; this keeps it true."""
    sets = published()[name].sets
    agrees = {
        k for k, printed in sets.items() if tuple(printed) == uniform_layers(published()[name].layers, k)
    }
    assert agrees == same
    assert set(sets) - agrees == different


def test_table_11_ships_whole():
    """All 15 sets, against the frozen table where it is at hand, against one row of each kind where not."""
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
        sets = published()[f"gendistill-{methods[row['method']]}"].sets
        assert sets[int(row["n_attention_layers"])] == [int(layer) for layer in row["layer_indices"].split()]


def test_published_sets_are_well_formed():
    for name, found in published().items():
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
        ({"given": [1, 1]}, "1 different layers were given for a budget of 2"),
        ({}, "name a published set"),
    ],
)
def test_a_fixed_list_that_does_not_fit_is_refused(changes, message):
    settings = {"named": None, "given": None, "k": 2, **changes}
    with pytest.raises(ConfigError, match=message):
        fixed_layers(28, settings.pop("k"), **settings)


def test_a_fixed_list_comes_back_in_order():
    assert fixed_layers(28, 2, named=None, given=[9, 3]) == (3, 9)
    assert fixed_layers(36, 3, named="postnas-qwen-3b", given=None) == (17, 20, 32)


def test_smart_keeps_the_ends_and_published_gaps():
    """Every published SMART set is what the rule gives where its own layers are the most sensitive."""
    for k, layers in published()["kl-guided-llama-smart"].sets.items():
        scores = [1.0 if layer in layers else 0.0 for layer in range(28)]
        assert smart_layers(scores, k) == tuple(layers)


def test_smart_prefers_sensitive_layers_only_within_near_uniform_placements():
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
def test_smart_always_finds_k_layers(drawn):
    scores, k = drawn
    chosen = smart_layers(scores, k)
    assert len(set(chosen)) == k
    assert list(chosen) == sorted(chosen)


def test_top_layers_break_ties_by_the_second_key_and_then_by_depth():
    assert top_layers([1.0, 3.0, 3.0, 2.0], 2) == (1, 2)
    assert top_layers([1.0, 1.0, 1.0], 1) == (0,)
    assert top_layers([1.0, 1.0, 1.0], 1, ties=[0.0, 0.0, 2.0]) == (2,)
    assert top_layers([float("nan"), 0.0, -1.0], 2) == (1, 2)


def test_ranks_share_ties():
    assert ranks([5.0, 1.0, 5.0, 0.0]) == [1.5, 3.0, 1.5, 4.0]


def test_one_swap_is_080_for_nine_layers_and_075_for_seven():
    for k, printed in ((9, 0.80), (7, 0.75)):
        one = list(range(k))
        assert jaccard(one, [*one[1:], 99]) == pytest.approx(printed)
        assert one_swap_jaccard(k) == pytest.approx(printed)


def settled(k: int, last: int) -> tuple[int, ...]:
    return (*range(k - 1), last)


def test_the_pass_stops_at_the_right_snapshot():
    """K = 9: noise for 5 snapshots, then a stable set, in which one place once went to another layer."""
    noise = [tuple(range(i, i + 9)) for i in (20, 14, 9, 5, 3)]
    swapped = [settled(9, 8)] * 3 + [settled(9, 30)] + [settled(9, 8)] * 20
    # One odd set among ten: 9 pairs of 0.8 and 36 of 1 make 0.96; the window is full of them at 5 + 10.
    rule = StopRule()
    assert rule.first([*noise, *swapped], 9) == 5 + 10 - 1
    window = rule.last([*noise, *swapped][:15])
    assert window.jaccard == pytest.approx((36 + 9 * 0.8) / 45)
    assert (window.backbone, window.union) == (8, 10)


def test_the_pass_does_not_stop_while_two_layers_are_undecided():
    """Mean similarity is high, but the two odd sets differ in different layers: the union is K + 2."""
    sets = [settled(9, 8)] * 8 + [settled(9, 30), settled(9, 31)]
    window = Window(sets=tuple(sets))
    assert window.jaccard > 0.90
    assert (window.backbone, window.union) == (8, 11)
    assert StopRule().first(sets, 9) is None


def test_the_pass_does_not_stop_on_an_alternating_place():
    """Half of the sets hold one layer and half another: 25 of 45 pairs are a swap apart, mean 0.889."""
    sets = [settled(9, 8 if i % 2 else 30) for i in range(40)]
    assert Window(sets=tuple(sets[:10])).jaccard == pytest.approx((20 + 25 * 0.8) / 45)
    assert StopRule().first(sets, 9) is None


def test_the_newer_of_two_alternating_layers_may_be_taken():
    """Appendix B's optional rule: the union is K + 1 and the set has just changed."""
    rule = StopRule(newer=True)
    sets = [settled(9, 8 if i % 2 else 30) for i in range(40)]
    assert rule.first(sets, 9) == 9
    assert sets[9] == settled(9, 8)
    # The last place changed hands once, long ago: nothing to choose between, so the whole rule decides.
    calm = [settled(9, 30)] * 3 + [settled(9, 8)] * 20
    assert rule.first(calm, 9) == StopRule().first(calm, 9)
    # Three layers contend for it: no rule stops.
    three = [settled(9, 8 + i % 3) for i in range(40)]
    assert rule.first(three, 9) is None
    # Two places each held by two layers in turn: K + 1 layers in all, but no backbone of K - 1.
    ring = [tuple(layer for layer in range(10) if layer != i % 3) for i in range(40)]
    assert Window(sets=tuple(ring[:10])).union == 10
    assert rule.first(ring, 9) is None


def test_a_window_must_be_full():
    assert StopRule().first([settled(4, 3)] * 9, 4) is None
    assert StopRule().first([settled(4, 3)] * 10, 4) == 9
    assert StopRule(window=3).first([settled(4, 3)] * 10, 4) == 2
