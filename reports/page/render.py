"""Render a report as index.html: one file, no network requests, all text escaped."""

import base64
import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

import evalsuite
from evalsuite.reports import formatting
from evalsuite.reports.analysis import findings
from evalsuite.reports.gate.verdict import Verdict
from evalsuite.reports.page import drill_down
from evalsuite.reports.page.sections import (
    ablations,
    cost,
    gate,
    heatmaps,
    layers,
    overview,
    pairwise,
    paper_comparison,
    paper_tables,
    protocol_gap,
    provenance,
    recovery,
    scaling,
    training_curves,
)
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
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = breakable
    documents, per_cell = packed_drill_down(report, questions)
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
        gate=gate.gate_lines(verdict),
        warnings=report.warnings,
        protocols=report.protocols,
        protocol_titles=formatting.PROTOCOL_TITLES,
        views=recovery.recovery_views(report),
        scopes=_scopes(report),
        gap=protocol_gap.gap_view(report),
        needles=heatmaps.needle_views(report),
        longbench=heatmaps.longbench_view(report),
        paper=paper_comparison.paper_view(report),
        paper_tables=paper_tables.paper_tables(report),
        paper_gap=paper_tables.paper_gap_sentence(report),
        scaling=scaling.scaling_views(report),
        ablations=ablations.ablation_views(report),
        training=training_curves.training_views(report),
        layers=layers.layer_rows(report),
        layer_charts=layers.layer_charts(report),
        selectors=layers.selector_views(report),
        costs=cost.cost_rows(report),
        cost_charts=cost.cost_charts(report),
        pairs=pairwise.pair_lines(report),
        replicates={
            protocol: findings.replicate_sentences(report, protocol) for protocol in report.protocols
        },
        lineages=provenance.lineages(report),
        benchmarks=report.benchmarks,
        categories=formatting.CATEGORY_TITLES,
        environments=[
            (str(run), provenance.environment_facts(facts))
            for run, facts in zip(
                (run.name for run in report.tensor.merged.runs), report.environments, strict=True
            )
        ],
        doctor=report.doctor,
        documents=documents,
        per_cell=per_cell,
        labels=_json([checkpoint.label for checkpoint in report.checkpoints]),
        teachers=_json(
            [None if s.teacher is None else report.checkpoints[s.teacher].label for s in report.checkpoints]
        ),
        titles=_json({benchmark.name: benchmark.title for benchmark in report.benchmarks}),
        has_questions=questions is not None,
        is_redacted=redacted,
        style=Markup((FOLDER / "style.css").read_text(encoding="utf-8")),
        script=Markup((FOLDER / "script.js").read_text(encoding="utf-8")),
    )


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


def _scopes(report: Report) -> Sequence[tuple[str, str]]:
    """Categories with benchmarks in the report; empty if there is only one."""
    found = {benchmark.category for benchmark in report.benchmarks}
    if len(found) < 2:
        return []
    return [
        (name, title) for name, title in formatting.CATEGORY_TITLES.items() if name == "all" or name in found
    ]


def _json(value: Any) -> Markup:
    """JSON that is safe inside a script element."""
    text = json.dumps(value, ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
