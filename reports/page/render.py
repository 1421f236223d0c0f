"""From a report to index.html: one file, no request, nothing that a label could smuggle in."""

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
from evalsuite.reports import findings, words
from evalsuite.reports.gating.verdict import Verdict
from evalsuite.reports.page import (
    cost_view,
    detail_view,
    gap_view,
    gate_view,
    heat_view,
    layer_view,
    printed_view,
    published_view,
    recovery_view,
    samples,
    scaling_view,
    training_view,
    variants_view,
)
from evalsuite.reports.report import Report

FOLDER = Path(__file__).parent
SAMPLE_BYTES = 700_000
"""Room for the drill-down; with many checkpoints each cell then shows fewer documents."""


def render_page(
    report: Report,
    questions: samples.Questions | None = None,
    verdict: Verdict | None = None,
    *,
    published: bool = False,
) -> str:
    """The page.

    Args:
        report: what to show.
        questions: gives the text of questions for the drill-down; None leaves them out, as a page that is
            published must.
        verdict: a gate's decision, shown above everything.
        published: whether the page says that it is meant for others.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = breakable
    documents, per_cell = packed_samples(report, questions)
    return environment.get_template("index.html.j2").render(
        version=evalsuite.__version__,
        tables=", ".join(
            ["leaderboard.csv", "scores.csv"]
            + (["gap.csv"] if report.gaps else [])
            + (["published.csv"] if report.published else [])
        ),
        headline=words.headline(report),
        meta=detail_view.meta(report),
        tiles=detail_view.tiles(report),
        verdict=verdict,
        gate=gate_view.gate_lines(verdict),
        warnings=report.warnings,
        protocols=report.protocols,
        protocol_words=words.PROTOCOL_WORDS,
        views=recovery_view.recovery_views(report),
        scopes=_scopes(report),
        gap=gap_view.gap_view(report),
        needles=heat_view.needle_views(report),
        longbench=heat_view.longbench_view(report),
        published=published_view.published_view(report),
        printed=printed_view.printed_tables(report),
        published_gap=printed_view.published_gap_sentence(report),
        scaling=scaling_view.scaling_views(report),
        variants=variants_view.variants_views(report),
        training=training_view.training_views(report),
        layers=layer_view.layer_rows(report),
        layer_charts=layer_view.layer_charts(report),
        selectors=layer_view.selector_views(report),
        costs=cost_view.cost_rows(report),
        cost_charts=cost_view.cost_charts(report),
        pairs=detail_view.pair_lines(report),
        replicates={
            protocol: findings.replicate_sentences(report, protocol) for protocol in report.protocols
        },
        lineages=detail_view.lineages(report),
        benchmarks=report.benchmarks,
        categories=words.CATEGORY_TITLES,
        environments=[
            (str(run), detail_view.environment_facts(facts))
            for run, facts in zip(
                (run.name for run in report.panel.merged.runs), report.environments, strict=True
            )
        ],
        doctor=report.doctor,
        documents=documents,
        per_cell=per_cell,
        labels=_json([subject.label for subject in report.subjects]),
        teachers=_json(
            [None if s.teacher is None else report.subjects[s.teacher].label for s in report.subjects]
        ),
        titles=_json({benchmark.name: benchmark.title for benchmark in report.benchmarks}),
        has_questions=questions is not None,
        is_published=published,
        style=Markup((FOLDER / "style.css").read_text(encoding="utf-8")),
        script=Markup((FOLDER / "script.js").read_text(encoding="utf-8")),
    )


def breakable(label: str) -> Markup:
    """A label that may break after its joints, `gated_` | `deltanet`, and is escaped."""
    return Markup("<wbr>").join(re.findall(r"[^_/@.-]*[_/@.-]*", label))


def packed_samples(report: Report, questions: samples.Questions | None) -> tuple[str, int]:
    """The drill-down as gzip in base64, with as many documents a cell as its room allows."""
    for most in (20, 12, 6, 3):
        rows = samples.drill_downs(report.panel, questions, most)
        data = json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode()
        packed = base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()
        if len(packed) <= SAMPLE_BYTES:
            break
    return packed, most


def _scopes(report: Report) -> Sequence[tuple[str, str]]:
    """Categories that the report has benchmarks of; none if there is but one."""
    found = {benchmark.category for benchmark in report.benchmarks}
    if len(found) < 2:
        return []
    return [(name, title) for name, title in words.CATEGORY_TITLES.items() if name == "all" or name in found]


def _json(value: Any) -> Markup:
    """JSON that is safe inside a script element."""
    text = json.dumps(value, ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
