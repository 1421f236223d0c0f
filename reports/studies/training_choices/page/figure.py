"""Figures of a study (SVG): drops and effects under both protocols, with 95 % intervals."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from evalsuite.foundation.taxonomy import PROTOCOL_TITLES, PROTOCOLS
from evalsuite.reports.statistics.intervals import Interval
from evalsuite.reports.studies.training_choices.analysis.effects import Drop, Effect

WIDTH, LEFT, RIGHT, ROW, TOP = 820, 300, 30, 34, 56
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #333 } .grid { stroke: #e2e5ea } .zero { stroke: #888 }
.loglikelihood { stroke: #1f6f8b; fill: #1f6f8b } .generation { stroke: #b4552d; fill: #b4552d }
line.loglikelihood, line.generation { stroke-width: 2 } .tick { fill: #666; text-anchor: middle }
.name { text-anchor: end }
""".strip()


Row = tuple[str, Mapping[str, Interval]]
"""Name, and protocol → interval (fractions of 1)."""


def draw_drops(drops: Sequence[Drop]) -> str:
    """Return the SVG document of what students lose, in points: one row per student."""
    return _draw(
        [
            (each.student, {"loglikelihood": each.loglikelihood, "generation": each.generation})
            for each in drops
        ]
    )


def draw(effects: Sequence[Effect]) -> str:
    """Return the SVG document of effects, in points: one row per effect."""
    return _draw(
        [
            (f"{each.axis}: {each.arm}, {each.student or 'mean'}", {p: each.under(p) for p in PROTOCOLS})
            for each in effects
        ]
    )


def _draw(rows: Sequence[Row]) -> str:
    ends = [100 * end for _, each in rows for p in PROTOCOLS for end in (each[p].low, each[p].high)]
    low, high = min([*ends, -1.0]), max([*ends, 1.0])
    step = next(each for each in (0.5, 1, 2, 5, 10, 20, 50, 100) if (high - low) / each <= 9)
    first, last = int(low // step), int(-(-high // step))
    height = TOP + ROW * len(rows) + 40

    def x(value: float) -> float:
        return LEFT + (value - first * step) / ((last - first) * step) * (WIDTH - LEFT - RIGHT)

    parts = []
    for place, protocol in enumerate(PROTOCOLS):
        at = LEFT + 160 * place
        parts.append(
            Markup('<circle class="{}" cx="{}" cy="22" r="5"/><text x="{}" y="26">{}</text>').format(
                protocol, at, at + 12, PROTOCOL_TITLES[protocol]
            )
        )
    for number in range(first, last + 1):
        value = number * step
        kind = "zero" if number == 0 else "grid"
        parts.append(
            Markup('<line class="{}" x1="{:.1f}" x2="{:.1f}" y1="{}" y2="{}"/>').format(
                kind, x(value), x(value), TOP - 12, height - 34
            )
        )
        label = f"{value:+g}".replace("-", "−") if number else "0"
        parts.append(
            Markup('<text class="tick" x="{:.1f}" y="{}">{}</text>').format(x(value), height - 16, label)
        )
    for row, (name, intervals) in enumerate(rows):
        y = TOP + ROW * row
        parts.append(Markup('<text class="name" x="{}" y="{}">{}</text>').format(LEFT - 14, y + 12, name))
        for place, protocol in enumerate(PROTOCOLS):
            interval, at = intervals[protocol].scaled(100), y + 3 + 10 * place
            parts.append(
                Markup(
                    '<line class="{0}" x1="{1:.1f}" x2="{2:.1f}" y1="{3}" y2="{3}"/>'
                    '<circle class="{0}" cx="{4:.1f}" cy="{3}" r="4"/>'
                ).format(protocol, x(interval.low), x(interval.high), at, x(interval.point))
            )
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    inside = Markup("").join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{inside}</svg>\n'
    )
