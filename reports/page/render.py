"""Render a report as index.html: one file, no network requests, all text escaped."""

import base64
import gzip
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

import evalsuite
from evalsuite.reports import formatting
from evalsuite.reports.gate.verdict import Verdict
from evalsuite.reports.page import drill_down, gate, overview
from evalsuite.reports.page.section import TEMPLATES, Section
from evalsuite.reports.page.sections import ordered_sections
from evalsuite.reports.report import Report

FOLDER = Path(__file__).parent
DRILL_DOWN_BYTES = 700_000
"""Size limit of the drill-down; with many checkpoints fewer documents are shown per table cell."""


def render_page(
    report: Report,
    questions: drill_down.Questions | None = None,
    verdict: Verdict | None = None,
    *,
    redacted: bool = False,
) -> str:
    """Render the page.

    Args:
        report: the report to show.
        questions: looks up question texts for the drill-down; None leaves them out, as redacted pages must.
        verdict: a gate verdict, shown first.
        redacted: whether the page states that it is redacted.
    """
    documents, per_cell = packed_drill_down(report, questions)
    environment = _environment(
        report,
        {"per_cell": per_cell, "has_questions": questions is not None, "is_redacted": redacted},
    )
    return environment.get_template("index.html.j2").render(
        version=evalsuite.__version__,
        tables=", ".join(
            ["leaderboard.csv", "scores.csv"]
            + (["gap.csv"] if report.gaps else [])
            + (["paper_comparison.csv"] if report.paper_comparison else [])
        ),
        headline=formatting.headline(report),
        meta=overview.meta(report),
        tiles=overview.tiles(report),
        verdict=verdict,
        lines=gate.gate_lines(verdict),
        warnings=report.warnings,
        sections=[
            {"id": each.id, "title": each.title, "nav": each.nav, "body": _body(environment, each, view)}
            for each in ordered_sections()
            if (view := each.view(report)) is not None
        ],
        documents=documents,
        labels=_json([checkpoint.label for checkpoint in report.checkpoints]),
        teachers=_json(
            [None if s.teacher is None else report.checkpoints[s.teacher].label for s in report.checkpoints]
        ),
        titles=_json({benchmark.name: benchmark.title for benchmark in report.benchmarks}),
        style=Markup((FOLDER / "style.css").read_text(encoding="utf-8")),
        script=Markup((FOLDER / "script.js").read_text(encoding="utf-8")),
    )


def _environment(report: Report, facts: Mapping[str, Any]) -> jinja2.Environment:
    """Jinja with the filters and names that every template may use."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = breakable
    environment.globals |= {
        "protocol_titles": formatting.PROTOCOL_TITLES,
        "categories": formatting.CATEGORY_TITLES,
        **facts,
    }
    return environment


def _body(environment: jinja2.Environment, section: Section, view: Any) -> Markup:
    """The HTML of a section, without its heading."""
    template = environment.from_string(section.template.read_text(encoding="utf-8"))
    return Markup(template.render(view=view))


def breakable(label: str) -> Markup:
    """Escape a label and allow line breaks after its separators: `gated_` | `deltanet`."""
    return Markup("<wbr>").join(re.findall(r"[^_/@.-]*[_/@.-]*", label))


def packed_drill_down(report: Report, questions: drill_down.Questions | None) -> tuple[str, int]:
    """The drill-down as base64 of gzip, with as many documents per table cell as fit."""
    for per_cell in (20, 12, 6, 3):
        rows = drill_down.drill_downs(report.tensor, questions, per_cell)
        data = json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode()
        packed = base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()
        if len(packed) <= DRILL_DOWN_BYTES:
            break
    return packed, per_cell


def _json(value: Any) -> Markup:
    """JSON that is safe inside a script element."""
    text = json.dumps(value, ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
