"""Lineages as reports read them."""

import re

from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.figures.row_charts import layer_strip
from evalsuite.reports.run import Checkpoint


def plan(**lineage) -> Checkpoint:
    return Checkpoint(weights_id="w" * 16, label="s", path="s", role="student", lineage=lineage)


def test_tokens_of_a_continued_student_include_its_ancestors():
    ancestors = [{"label": "gla", "weights_id": "a" * 16, "tokens": 300, "recipe": {"name": "first"}}]
    found = lineage_of(plan(tokens=100, total_tokens=400, distinct_tokens=80, ancestors=ancestors))
    assert found.tokens == 400
    assert found.distinct_tokens == 80
    assert found.ancestors == ("gla of first",)


def test_older_and_hand_written_lineages_state_less():
    found = lineage_of(plan(tokens=100))
    assert (found.tokens, found.distinct_tokens, found.ancestors) == (100, None, ())
    assert lineage_of(plan(ancestors="mine", distinct_tokens="many")).ancestors == ()
    assert lineage_of(plan(ancestors=[{"weights_id": "a" * 16}])).ancestors == ("a" * 16,)


def test_a_recurrence_with_a_window_is_not_its_papers_mixer():
    pure, window = lineage_of(plan(mixers=["kda"] * 2)), {"windows": {"kda": 256}}
    branch = lineage_of(plan(mixers=["kda"] * 2, **window))
    mixed = lineage_of(plan(mixers=["softmax", "kda"], **window))
    sliding = lineage_of(plan(mixers=["sliding_window"] * 2, windows={"sliding_window": 64}))
    assert [each.is_plain for each in (pure, branch, mixed, sliding)] == [True, False, False, True]
    assert [each.describe_mixers() for each in (pure, branch, mixed, sliding)] == [
        "KDA",
        "KDA (window 256)",
        "1 × softmax + 1 × KDA (window 256)",
        "sliding window (64)",
    ]
    assert not lineage_of(plan(mixers=["kda"], windows={"kda": "wide"})).windows


def test_a_recurrence_with_softmax_heads_is_a_hybrid():
    found = lineage_of(plan(mixers=["kda", "kda", "softmax"], softmax_heads={"1": [0, 2]}))
    assert found.layers == (("kda", ()), ("kda", (0, 2)), ("softmax", ()))
    assert found.describe_mixers() == "1 × softmax + 2 × KDA + 2 softmax heads"
    strip = layer_strip(3, found.softmax_layers, found.softmax_heads, "layers")
    titles = re.findall("<title>(.*?)</title>", strip)
    assert titles == ["layer 0: linear", *["layer 1: linear with softmax heads 0, 2"] * 2, "layer 2: softmax"]
    one = lineage_of(plan(mixers=["kda", "kda"], softmax_heads={"1": [0]}))
    assert (one.describe_mixers(), one.is_plain, one.family) == ("KDA + 1 softmax head", False, "KDA hybrids")
    assert not lineage_of(plan(mixers=["kda"], softmax_heads={"a": 1, "0": 2})).softmax_heads


def test_a_lineage_states_the_titles_of_its_mixers():
    """Those of other packages too; without, a mixer goes by a known title or by its registered name."""
    stated = lineage_of(plan(mixers=["mine", "kda"], mixer_titles={"mine": "My mixer"}))
    assert stated.describe_mixers() == "1 × My mixer + 1 × KDA"
    assert lineage_of(plan(mixers=["mine"], mixer_titles="mine")).describe_mixers() == "mine"


def test_a_lineage_states_the_place_of_its_mixers_in_the_taxonomy():
    """The state is that of all layers, as it was counted; the rest is that of the recurrent mixer."""
    places = {
        "kda": {"update": "delta", "decay": "input-dependent", "granularity": "channel", "state_bytes": 100},
        "softmax": {"update": "attention", "decay": None, "granularity": None, "state_bytes": 0},
    }
    stated = {"mixers": ["kda", "softmax", "kda"], "taxonomy": places}
    hybrid = lineage_of(plan(**stated, softmax_heads={"0": [1]}, state_bytes=150))
    assert hybrid.main_taxonomy == places["kda"]
    assert hybrid.state_bytes == 150
    assert lineage_of(plan(**stated)).state_bytes is None
    unknown = lineage_of(plan(mixers=["kda"], taxonomy={"kda": "delta"}, state_bytes="many"))
    assert (unknown.main_taxonomy, unknown.state_bytes) == ({}, None)
