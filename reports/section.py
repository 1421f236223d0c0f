"""Sections of the page: one registration each.

    @section("recall", "Recall", order=40)
    def recall_section(report: Report) -> list[Block]:
        ...

The function turns the report into blocks (see `blocks.py`); without any, the page does without the section.
One that blocks cannot show names a Jinja template, which finds what the function returns as `view`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsuite.foundation.registry import Registry
from evalsuite.reports.report import Report

TEMPLATES = Path(__file__).parent / "page" / "templates"
BLOCKS = TEMPLATES / "blocks.html.j2"
"""The template of all sections that are made of blocks."""

View = Callable[[Report], Any]
"""A report → the blocks of the section or the data of its template; None or empty: no such section."""


@dataclass(frozen=True, slots=True)
class Section:
    """One section of the page."""

    id: str
    """Anchor of the section; unique on the page."""
    title: str
    order: float
    """Position on the page, in ascending order: below 20 at its top, then folded behind the questions what
    was lost (20), where (40), why (50), at what cost (70) and how sure (80)."""
    view: View
    template: Path


SECTIONS: Registry[Section] = Registry("page section")


def section(id: str, title: str, *, order: float, template: str | Path = BLOCKS) -> Callable[[View], View]:
    """Register the decorated function as a section; see the module.

    Args:
        id: its anchor.
        title: its heading.
        order: its position.
        template: a Jinja template of the page's folder, or any by its path; default: that of blocks.

    Raises:
        ValueError: the id is taken.
    """

    def decorate(view: View) -> View:
        SECTIONS.add(id, Section(id, title, order, view, TEMPLATES / template))
        return view

    return decorate
