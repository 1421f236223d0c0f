"""Render a report as index.html: one file, no network requests, all text escaped."""

import base64
import gzip
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import jinja2
from jinja2.bccache import Bucket
from markupsafe import Markup

import evalsuite
from evalsuite.foundation import counted
from evalsuite.foundation.taxonomy import FAILURES, OUTCOME_MEANINGS
from evalsuite.reports import formatting, measures
from evalsuite.reports.figures.figure import script_json
from evalsuite.reports.gate.verdict import Verdict
from evalsuite.reports.headline import headline
from evalsuite.reports.page import gate, overview
from evalsuite.reports.page.samples import SampleCell
from evalsuite.reports.page.sections import ordered_sections
from evalsuite.reports.page.tables import shown
from evalsuite.reports.report import Report
from evalsuite.reports.section import BLOCKS, TEMPLATES, Section
from evalsuite.reports.table import Table

FOLDER = Path(__file__).parent
SCRIPTS = ("unpack.js", "page.js", "students.js", "board.js", "figures.js", "samples.js")
PLOTLY = FOLDER / "vendor" / "plotly-cartesian.min.js"


QUESTIONS = {
    20: ("lost", "What was lost?"),
    40: ("where", "Where?"),
    50: ("why", "Why?"),
    70: ("cost", "At what cost?"),
    80: ("sure", "How sure?"),
}
"""First order of the sections that answer a question → its anchor and title; others stand at the top."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A section with its HTML."""

    id: str
    title: str
    question: str | None
    body: Markup


@dataclass(frozen=True, slots=True)
class Question:
    """A question with the sections that answer it."""

    id: str
    title: str
    sections: Sequence[Shown]


def _question(section: Section) -> str | None:
    """Anchor of the question that a section answers, by its order; None at the top."""
    return next((id for start, (id, _) in reversed(QUESTIONS.items()) if section.order >= start), None)


def render_page(
    report: Report,
    verdict: Verdict | None = None,
    *,
    samples: Sequence[SampleCell] = (),
    has_questions: bool = False,
    redacted: bool = False,
    tables: Sequence[Table[Any]] | None = None,
) -> str:
    """Render the page.

    Args:
        report: the report to show.
        verdict: a gate verdict, shown first.
        samples: cells whose samples lie next to the page, as `write_samples` returns them.
        has_questions: whether the samples contain document texts.
        redacted: whether the page states that it is redacted.
        tables: with rows computed, as `measures.computed` returns them; None: computed here.
    """
    tables = measures.computed(report)[0] if tables is None else tables
    environment = _environment(
        report,
        {"has_samples": bool(samples), "has_questions": has_questions, "is_redacted": redacted},
    )
    sections = [
        Shown(each.id, each.title, _question(each), _body(environment, each, view))
        for each in ordered_sections(tables)
        if (view := _view(each, report))
    ]
    return environment.get_template("index.html.j2").render(
        version=evalsuite.__version__,
        tables=[f"{table.name}.csv" for table in tables if table.is_written(report)],
        headline=headline(report),
        meta=overview.meta(report),
        verdict=verdict,
        lines=gate.gate_lines(verdict),
        warnings=report.warnings,
        first=[each for each in sections if each.question is None],
        questions=[
            Question(id, title, members)
            for id, title in QUESTIONS.values()
            if (members := [each for each in sections if each.question == id])
        ],
        sample_facts=_sample_facts(report, samples),
        style=Markup((FOLDER / "style.css").read_text(encoding="utf-8")),
        scripts=[Markup((FOLDER / "scripts" / name).read_text(encoding="utf-8")) for name in SCRIPTS],
        plotly=packed_plotly(),
    )


@cache
def packed_plotly() -> str:
    """The bundle that draws the figures, as base64 of gzip: a third of its size."""
    return packed(PLOTLY.read_text(encoding="utf-8"))


class _CompiledTemplates(jinja2.BytecodeCache):
    """Compiled templates, by name and content, for all pages of this process."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._known.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        if bucket.code is not None:
            self._known[bucket.key, bucket.checksum] = bucket.code


_COMPILED = _CompiledTemplates()


def _source(name: str) -> tuple[str, str, None] | None:
    """Text and path of a template: below our folder, or anywhere by its absolute path."""
    path = TEMPLATES / name
    return (path.read_text(encoding="utf-8"), str(path), None) if path.is_file() else None


def new_environment() -> jinja2.Environment:
    """Jinja over the page's templates, with their filters."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        bytecode_cache=_COMPILED,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"breakable": breakable, "counted": counted, "packed": packed}
    return environment


def _environment(report: Report, facts: Mapping[str, Any]) -> jinja2.Environment:
    """Jinja with the names that every section's template may use."""
    environment = new_environment()
    environment.globals |= {
        "protocol_titles": formatting.PROTOCOL_TITLES,
        "categories": formatting.CATEGORY_TITLES,
        "failures": {name: OUTCOME_MEANINGS[name].title for name in FAILURES},
        **facts,
    }
    return environment


def _view(section: Section, report: Report) -> Any:
    """What its template shows; None or empty: nothing."""
    view = section.view(report)
    return shown(view, report) if view and section.template == BLOCKS else view


def _body(environment: jinja2.Environment, section: Section, view: Any) -> Markup:
    """The HTML of a section, without its heading."""
    return Markup(environment.get_template(str(section.template)).render(view=view))


def packed(text: str) -> str:
    """Base64 of gzip, which the page unpacks where it is needed."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def breakable(label: str) -> Markup:
    """Escape a label and allow line breaks after its separators: `gated_` | `deltanet`; markup stays."""
    if isinstance(label, Markup):
        return label
    return Markup("<wbr>").join(re.findall(r"[^_/@.-]*[_/@.-]*", label))


def _sample_facts(report: Report, samples: Sequence[SampleCell]) -> Markup:
    """What the sample browser knows without loading anything."""
    return script_json(
        {
            "labels": [checkpoint.label for checkpoint in report.checkpoints],
            "teachers": [checkpoint.teacher for checkpoint in report.checkpoints],
            "outcomes": {name: outcome.title for name, outcome in OUTCOME_MEANINGS.items()},
            "cells": [
                {
                    "name": cell.name,
                    "benchmark": cell.benchmark,
                    "title": cell.title,
                    "protocol": cell.protocol,
                    "lower": cell.is_lower_better,
                }
                for cell in samples
            ],
        }
    )
