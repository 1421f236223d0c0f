"""The selection figure: valid SVG, bars that grow with importance, stability plot."""

from xml.etree import ElementTree

from evalsuite.reports.page.selection_figure import draw
from evalsuite.reports.records.sidecars import Selection

BARS = ".//{http://www.w3.org/2000/svg}rect[@class]"


def selection(**changes) -> Selection:
    value = {"schema": 2, "selector": "ga_s2", "layers": [1, 2], "measure": "a < b & c", **changes}
    return Selection.model_validate(value)


def bars(text: str) -> dict[int, tuple[str, float]]:
    """Layer → class and height of its bar, read from the titles."""
    found = {}
    for bar in ElementTree.fromstring(text).iterfind(BARS):
        title = bar[0].text or ""
        found[int(title.split()[1].rstrip(":"))] = (bar.attrib["class"], float(bar.attrib["height"]))
    return found


def test_bars_of_negative_scores_grow_with_importance() -> None:
    drawn = bars(draw(selection(scores=[-3.0, -1.0, -1.5, -2.0])))
    assert [drawn[layer][0] for layer in range(4)] == ["linear", "softmax", "softmax", "linear"]
    heights = [drawn[layer][1] for layer in range(4)]
    assert heights[1] > heights[2] > heights[3] > heights[0]


def test_layers_without_scores_are_shown() -> None:
    drawn = bars(draw(selection(selector="uniform", layers=[0, 2])))
    assert {layer: kind for layer, (kind, _) in drawn.items()} == {0: "softmax", 1: "linear", 2: "softmax"}


def test_stability_is_plotted_for_searches() -> None:
    history = [{"step": i, "tokens": i * 1000, "layers": [1, 2]} for i in range(1, 5)]
    text = draw(selection(scores=[0.0, 1.0, 2.0], history=history))
    assert "mean Jaccard similarity" in text
    assert "mean Jaccard similarity" not in draw(selection(scores=[0.0, 1.0, 2.0], history=history[:2]))
    assert "a &lt; b &amp; c" in text
