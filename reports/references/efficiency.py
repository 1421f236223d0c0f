"""What the papers state about the efficiency of students relative to their teachers.

Hybrids of arXiv 2603.26556 keep 7 of 28 layers softmax (Qwen3-0.6B, one GPU). arXiv 2504.14366 (Figure 3) has
curves without values: linear time to read an input, constant time per generated token.
"""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("efficiency.csv")


@dataclass(frozen=True, slots=True)
class PaperRatio:
    """Teacher's cost ÷ student's at one context, as a paper states it."""

    paper: str
    figure: str
    student: str
    """`hybrid`: a quarter of the layers is softmax."""
    quantity: str
    """One of `evalsuite.reports.measures.efficiency.comparison.QUANTITIES`."""
    context: int
    low: float | None
    """None: the paper only states an upper end."""
    high: float
    statement: str


@cache
def paper_ratios() -> tuple[PaperRatio, ...]:
    """All statements."""
    with open(FILE, encoding="utf-8", newline="") as file:
        return tuple(
            PaperRatio(
                row["paper"],
                row["figure"],
                row["student"],
                row["quantity"],
                int(row["context"]),
                float(row["ratio_low"]) if row["ratio_low"] else None,
                float(row["ratio_high"]),
                row["statement"],
            )
            for row in csv.DictReader(file)
        )
