"""What a section of the page is made of: texts, figures, tables, and parts that hold these.

A section returns a list of blocks; one template shows all of them. A declared table is a block, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from evalsuite.reports.figures.figure import Figure, Values
from evalsuite.reports.table import Table


@dataclass(frozen=True, slots=True)
class Text:
    """One paragraph."""

    text: str
    css: str = "sub"


@dataclass(frozen=True, slots=True)
class Charts:
    """Figures next to each other."""

    figures: Sequence[Figure]


@dataclass(frozen=True, slots=True)
class Texts:
    """A table of texts, the first column of names; for cells that are no values of a declared table."""

    values: Values
    label: str
    """For screen readers."""


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks that a reader can fold away."""

    summary: str
    blocks: "Sequence[Block]"
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a section with a heading."""

    title: str
    blocks: "Sequence[Block]"
    anchor: str = ""
    css: str = ""


Block = Text | Charts | Texts | Fold | Part | Table[Any]


def charts(figures: Sequence[Figure | None]) -> list[Block]:
    """The figures that there are; none of them, no block."""
    found = [each for each in figures if each is not None]
    return [Charts(found)] if found else []


def chip(label: str, *chips: str) -> Markup:
    """A name with marks such as `teacher`, for the first cell of a row."""
    marks = Markup("").join(Markup('<span class="chip">{}</span>').format(each) for each in chips)
    return Markup("{}{}").format(label, marks)
