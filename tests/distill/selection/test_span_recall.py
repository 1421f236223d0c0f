"""`span_recall`: a greedy search over windowed teachers."""

import copy
from itertools import combinations

import pytest

from evalsuite.distill.selection.measured_sets import MeasuredSets
from evalsuite.distill.selection.selectors import span_recall
from evalsuite.models import build_student
from evalsuite.models.diagnostics import repeated_spans
from evalsuite.models.diagnostics.repeated_spans import span_scores
from tests.distill.selection.conftest import small_selector


def recall_and_spans(context, monkeypatch):
    """The measurement with small settings, and the spans that it measures."""
    drawn = []
    draw = repeated_spans.repeated_spans
    with monkeypatch.context() as patch:
        patch.setattr(
            repeated_spans, "repeated_spans", lambda *a, **k: drawn.append(draw(*a, **k)) or drawn[-1]
        )
        return span_recall.windowed_recall(context, num_examples=6, seed=0), drawn[0]


def test_sets_are_the_teacher_with_windows_in_the_other_layers(context, monkeypatch):
    measure, spans = recall_and_spans(context, monkeypatch)
    assert span_recall.GAP // 2 == context.max_length // 2 == 256 > span_recall.WINDOW
    full = span_scores(context.teacher, spans)
    assert measure(range(3))["gain"] == pytest.approx(full.gain.mean(), rel=1e-5)
    assert measure(range(3))["recall"] == full.right.mean()
    mixers = ["sliding_window", "softmax", "sliding_window"]
    options = {"sliding_window": {"window": span_recall.WINDOW, "sinks": span_recall.SINKS}}
    student = build_student(copy.deepcopy(context.teacher), mixers, options=options).eval()
    expected = span_scores(student, spans)
    assert measure([1])["gain"] == pytest.approx(expected.gain.mean(), rel=1e-5)
    assert len({round(measure(each)["gain"], 6) for each in ([], [0], [1], [0, 2], range(3))}) == 5


def test_the_search_adds_the_best_layer_each_time(context, monkeypatch):
    gains = {(): 0.0, (0,): 1.0, (1,): 2.0, (2,): 0.5, (0, 1): 2.5, (1, 2): 3.0, (0, 2): 9.0, (0, 1, 2): 4.0}

    class Measured(MeasuredSets):
        def __init__(self):
            self._context, self._unit, self._cost = context, "set", lambda row: (-row["gain"],)
            self._known = {frozenset(key): {"layers": [*key], "gain": gains[key]} for key in gains}

    monkeypatch.setattr(span_recall, "windowed_recall", lambda *_: Measured())
    result = small_selector("span_recall").select(context, 2)
    # Alone, layers 0 and 2 are best together; a greedy search does not find that.
    assert result.layers == (1, 2)
    assert result.scores == (1.0, 2.0, 0.5)
    assert [each.layers for each in result.history] == [(1,), (1, 2)]
    assert [each["gain"] for each in result.details["path"]] == [2.0, 3.0]


def test_an_interrupted_search_measures_no_set_twice(context, monkeypatch):
    selector, scored = small_selector("span_recall", seed=5), span_scores
    calls = []

    def counting(student, spans):
        calls.append(tuple(student.config.mixers))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return scored(student, spans)

    monkeypatch.setattr(repeated_spans, "span_scores", counting)
    with pytest.raises(KeyboardInterrupt):
        selector.select(context, 2)
    result = selector.select(context, 2)
    # No, one and three layers, and both sets of two that hold the best one; the third call was interrupted.
    assert len(calls) == 3 + 1 + 1 + 2 + 1
    assert len(set(calls)) == len(calls) - 1
    measured = {tuple(sorted(each)) for each in combinations(range(3), 2) if result.layers[0] in each}
    assert result.layers in measured
