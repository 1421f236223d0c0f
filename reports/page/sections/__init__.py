"""Sections of the page: importing this package registers all of them."""

from collections.abc import Iterable
from typing import Any

from evalsuite.reports import measures
from evalsuite.reports.page.sections import provenance, recovery, students
from evalsuite.reports.page.tables import table_section
from evalsuite.reports.section import SECTIONS, Section
from evalsuite.reports.table import Table

MODULES = (students, recovery, provenance)
"""Sections that show every measure or none; the others come from `measures`."""


def ordered_sections(tables: Iterable[Table[Any]] | None = None) -> list[Section]:
    """All sections from the top of the page to its end: those of modules and those of tables.

    Args:
        tables: with rows computed; None: all tables of measures that can be used.
    """
    placed = (table for table in (measures.tables() if tables is None else tables) if table.order is not None)
    found = [*SECTIONS.values(), *(table_section(table) for table in placed)]
    return sorted(found, key=lambda each: each.order)
