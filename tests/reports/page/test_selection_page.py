"""The page of a selection: bars that grow with importance, stability of a search, and the layers alone."""

import json

from evalsuite.reports.blocks import Charts, Text
from evalsuite.reports.figures.figure import Figure
from evalsuite.reports.measures.layers import selector_blocks
from evalsuite.reports.page.standalone import selection_page
from evalsuite.reports.records.sidecars import Selection


def selection(**changes) -> Selection:
    value = {"schema": 2, "selector": "ga_s2", "layers": [1, 2], "measure": "a < b & c", **changes}
    return Selection.model_validate(value)


def figures(value: Selection) -> list[Figure]:
    return [
        figure
        for block in selector_blocks(value, value.selector)
        if isinstance(block, Charts)
        for figure in block.figures
    ]


def test_bars_of_negative_scores_grow_with_importance() -> None:
    (drawn,) = figures(selection(scores=[-3.0, -1.0, -1.5, -2.0]))
    traces = {trace["name"]: trace for trace in json.loads(drawn.data)["data"]}
    assert {name: trace["x"] for name, trace in traces.items()} == {"softmax": [1, 2], "linear": [0, 3]}
    heights = {x: y for trace in traces.values() for x, y in zip(trace["x"], trace["y"], strict=True)}
    assert heights[1] > heights[2] > heights[3] > heights[0] == 0


def test_layers_without_scores_are_stated() -> None:
    blocks = selector_blocks(selection(selector="uniform", layers=[0, 2]), "uniform")
    assert [block.text for block in blocks if isinstance(block, Text)] == ["Selects 2 layers: 0, 2."]
    assert len(blocks) == 1


def test_stability_is_drawn_for_searches() -> None:
    history = [{"step": i, "tokens": i * 1000, "layers": [1, 2]} for i in range(1, 5)]
    long, short = (
        selection_page(selection(scores=[0.0, 1.0, 2.0], history=steps), "layers.json")
        for steps in (history, history[:2])
    )
    assert "mean Jaccard similarity" in long
    assert "mean Jaccard similarity" not in short
    assert "a &lt; b &amp; c" in short
    assert "layers.json in the same folder" in short
