"""Sections of the page: one module with one registration and one template each.

    @section("cost", "Cost", order=70)
    def cost_section(report: Report) -> CostView | None:
        ...

The function turns the report into what the template shows, or returns None where there is nothing to show.
The template is `templates/sections/<id>.html.j2` unless another is given; it finds the data as `view`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsuite.foundation.registry import Registry
from evalsuite.reports.report import Report

TEMPLATES = Path(__file__).parent / "page" / "templates"

View = Callable[[Report], Any]
"""A report → the data of the section's template, or None if the page does without the section."""


@dataclass(frozen=True, slots=True)
class Section:
    """One section of the page."""

    id: str
    """Anchor of the section; unique on the page."""
    title: str
    order: float
    """Position on the page; sections of a run stand in ascending order."""
    view: View
    template: Path
    nav: str
    """Short title for the navigation."""


SECTIONS: Registry[Section] = Registry("page section")


def section(
    id: str, title: str, *, order: float, nav: str = "", template: Path | None = None
) -> Callable[[View], View]:
    """Register the decorated function as a section; see the module.

    Args:
        id: its anchor, and the name of its template.
        title: its heading.
        order: its position.
        nav: its title in the navigation; default: `title`.
        template: a Jinja template elsewhere.

    Raises:
        ValueError: the id is taken.
    """

    def decorate(view: View) -> View:
        path = template or TEMPLATES / "sections" / f"{id}.html.j2"
        SECTIONS.add(id, Section(id, title, order, view, path, nav or title))
        return view

    return decorate
