"""Sections of the page: importing this package registers all of them."""

from collections.abc import Iterable
from typing import Any

from evalsuite.reports import measures
from evalsuite.reports.page.section import SECTIONS, Section
from evalsuite.reports.page.sections import (
    ablations,
    closeness,
    cost,
    distance,
    layers,
    paper_comparison,
    probe,
    protocol_gap,
    provenance,
    recall,
    recovery,
    retention,
    scaling,
    training_curves,
)
from evalsuite.reports.page.tables import table_section
from evalsuite.reports.table import Table

MODULES = (
    ablations,
    closeness,
    cost,
    distance,
    layers,
    paper_comparison,
    probe,
    protocol_gap,
    provenance,
    recall,
    recovery,
    retention,
    scaling,
    training_curves,
)
"""Modules with sections; each registers its own when it is imported."""


def ordered_sections(tables: Iterable[Table[Any]] | None = None) -> list[Section]:
    """All sections from the top of the page to its end: those of modules and those of tables.

    Args:
        tables: with rows computed; None: all tables of measures that can be used.
    """
    placed = (table for table in (measures.tables() if tables is None else tables) if table.order is not None)
    found = [*SECTIONS.values(), *(table_section(table) for table in placed)]
    return sorted(found, key=lambda each: each.order)
