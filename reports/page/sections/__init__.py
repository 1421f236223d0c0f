"""Sections of the page: importing this package registers all of them."""

from evalsuite.reports.page.section import SECTIONS, Section
from evalsuite.reports.page.sections import (
    ablations,
    closeness,
    cost,
    distance,
    layers,
    pairwise,
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

MODULES = (
    ablations,
    closeness,
    cost,
    distance,
    layers,
    pairwise,
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


def ordered_sections() -> list[Section]:
    """All sections from the top of the page to its end."""
    return sorted(SECTIONS.values(), key=lambda each: each.order)
