"""`span_recall`: a greedy search over windowed teachers."""

import copy
from itertools import combinations

import pytest

from evalsuite.distill.selection import span_recall
from evalsuite.distill.selection.span_recall import WindowedRecall
from evalsuite.models import build_student
from evalsuite.models.diagnostics.repeated_spans import span_scores


def test_sets_are_the_teacher_with_windows_in_the_other_layers(context):
    measure = WindowedRecall(context)
    assert span_recall.GAP // 2 == context.max_length // 2 == 256 > span_recall.WINDOW
    full = span_scores(context.teacher, measure._spans)
    assert measure(range(3))["gain"] == pytest.approx(full.gain.mean(), rel=1e-5)
    assert measure(range(3))["recall"] == full.right.mean()
    mixers = ["sliding_window", "softmax", "sliding_window"]
    options = {"sliding_window": {"window": span_recall.WINDOW, "sinks": span_recall.SINKS}}
    student = build_student(copy.deepcopy(context.teacher), mixers, options=options).eval()
    expected = span_scores(student, measure._spans)
    assert measure([1])["gain"] == pytest.approx(expected.gain.mean(), rel=1e-5)
    assert len({round(measure(each)["gain"], 6) for each in ([], [0], [1], [0, 2], range(3))}) == 5


def test_the_search_adds_the_best_layer_each_time(context, monkeypatch):
    gains = {(): 0.0, (0,): 1.0, (1,): 2.0, (2,): 0.5, (0, 1): 2.5, (1, 2): 3.0, (0, 2): 9.0, (0, 1, 2): 4.0}

    class Measured(WindowedRecall):
        def __init__(self, context):
            self._context = context
            self._known = {frozenset(key): {"layers": [*key], "gain": gains[key]} for key in gains}

    monkeypatch.setattr(span_recall, "WindowedRecall", Measured)
    result = span_recall.span_recall(context, 2)
    # Alone, layers 0 and 2 are best together; a greedy search does not find that.
    assert result.layers == (1, 2)
    assert result.scores == (1.0, 2.0, 0.5)
    assert [each.layers for each in result.history] == [(1,), (1, 2)]
    assert [each["gain"] for each in result.details["path"]] == [2.0, 3.0]


def test_an_interrupted_search_measures_no_set_twice(context, monkeypatch):
    context.options = context.options.model_copy(update={"seed": 5})
    scored = span_recall.span_scores
    calls = []

    def counting(student, spans):
        calls.append(tuple(student.config.mixers))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return scored(student, spans)

    monkeypatch.setattr(span_recall, "span_scores", counting)
    with pytest.raises(KeyboardInterrupt):
        span_recall.span_recall(context, 2)
    result = span_recall.span_recall(context, 2)
    # No, one and three layers, and both sets of two that hold the best one; the third call was interrupted.
    assert len(calls) == 3 + 1 + 1 + 2 + 1
    assert len(set(calls)) == len(calls) - 1
    measured = {tuple(sorted(each)) for each in combinations(range(3), 2) if result.layers[0] in each}
    assert result.layers in measured
