"""Figure of a selection (SVG): importance per layer, and stability of the selected set."""

from markupsafe import Markup, escape

from evalsuite.reports.figures.axes import Axis, nice_axis
from evalsuite.reports.figures.charts import Plot, curves, layer_bars, layer_strip
from evalsuite.reports.figures.plots import Curve, Point
from evalsuite.reports.measures.layers import scores_above_minimum
from evalsuite.reports.records.sidecars import Selection
from evalsuite.reports.statistics.agreement import stability

WIDTH, LEFT, INNER = 760, 70, 650
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #333 } .head { font-size: 15px; font-weight: 600 }
.softmax { fill: #1f6f8b } .linear { fill: #c9ced6 } .stub, .grid { stroke: #d8dce2 }
.ref { stroke: #888; stroke-dasharray: 4 4 } .stem { stroke-width: 2 } .tick { fill: #666 }
.s0 .stem { stroke: #1f6f8b } .s0 .disc { fill: #1f6f8b }
.s1 .stem { stroke: #b4552d; stroke-dasharray: 5 3 } .s1 .disc { fill: #b4552d }
""".strip()


def draw(selection: Selection) -> str:
    """Return the SVG document."""
    parts: list[Markup] = []
    chosen = ", ".join(map(str, sorted(selection.layers)))
    y = _line(parts, f"{selection.selector}: layers {chosen} stay softmax", 24, "head")
    if selection.scores:
        scores, caption = scores_above_minimum(selection)
        y = _line(parts, caption, y, "caption")
        parts.append(_placed(layer_bars(scores, selection.layers, caption), y, 224))
        y += 260
    elif selection.layers:
        count = max(selection.layers) + 1
        parts.append(_placed(layer_strip(count, selection.layers, f"layers {chosen}"), y, 18))
        y = _numbers(parts, count, y + 32)
    if len({step.tokens for step in selection.history}) > 2:
        y = _line(
            parts, "mean Jaccard similarity (solid) and backbone ÷ K (dashed) of the last sets", y, "caption"
        )
        parts.append(_placed(_stability_plot(selection), y, 176))
        y = _line(parts, "training tokens over all candidates", y + 214, "caption")
    inside = Markup("").join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}">'
        f'<style>{STYLE}</style><rect width="100%" height="100%" fill="#fff"/>{inside}</svg>\n'
    )


def _line(parts: list[Markup], text: str, y: int, kind: str) -> int:
    parts.append(Markup('<text class="{}" x="{}" y="{}">{}</text>').format(kind, LEFT, y, text))
    return y + 22


def _placed(figure: Markup, y: int, height: int) -> Markup:
    return Markup('<svg x="{}" y="{}" width="{}" height="{}" overflow="visible">{}</svg>').format(
        LEFT, y, INNER, height, figure
    )


def _numbers(parts: list[Markup], layers: int, y: int) -> int:
    """Layer numbers under the bars, thinned out for many layers."""
    every = -(-layers // 40)
    for layer in range(0, layers, every):
        x = LEFT + INNER * (layer + 0.41) / layers
        parts.append(
            Markup('<text class="tick" x="{}" y="{}" text-anchor="middle">{}</text>').format(
                round(x, 1), y, layer
            )
        )
    return y + 34


def _stability_plot(selection: Selection) -> Markup:
    history = selection.history
    found = stability([step.layers for step in history])
    similarity = [
        Point(step.tokens, at.jaccard, label=f"{at.jaccard:.2f}")
        for step, at in zip(history, found, strict=True)
        if at.jaccard is not None
    ]
    backbone = [
        Point(step.tokens, at.backbone / max(1, len(step.layers)), label=f"backbone {at.backbone}")
        for step, at in zip(history, found, strict=True)
    ]
    x_axis = nice_axis([step.tokens for step in history], include=[0], steps=4)
    plot = Plot(x_axis, Axis(0, 1, (0, 0.25, 0.5, 0.75, 1)), 176)
    return curves(
        [Curve("mean Jaccard similarity", tuple(similarity)), Curve("backbone ÷ K", tuple(backbone))],
        plot,
        label=str(escape(f"stability of {selection.selector}")),
        x_labels=[_short(tick) for tick in x_axis.ticks],
        reference=0.9,
    )


def _short(tokens: float) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if tokens >= size:
            return f"{tokens / size:g}{letter}"
    return f"{tokens:g}"
