"""Figures of released conversions as their authors print them, read from `conversions.csv`."""

import csv
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, StringConstraints, model_validator

from evalsuite.foundation import DataError
from evalsuite.foundation.strict import Strict, parse

FILE = Path(__file__).with_name("conversions.csv")

Kind = Literal["loglikelihood", "recall", "generation"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
Percent = Annotated[float, Field(ge=0, le=100)]


class Figure(Strict):
    """One printed figure of a student and its teacher: two scores, or their ratio alone. In percent."""

    model: Text
    teacher: Text
    parameters: Annotated[float, Field(ge=0)]
    """The teacher's, in millions; 0 if unknown."""
    source: Text
    """Short citation, and where: a card, a commit's README, a table, a file."""
    kind: Kind
    benchmark: Text
    teacher_score: Annotated[float, Field(gt=0, le=100)] | None = None
    student_score: Percent | None = None
    recovery: Annotated[float, Field(ge=0)] | None = None
    """Where the source states the ratio and no scores."""
    documents: Annotated[int, Field(gt=0)] | None = None
    """Known only where the score is their plain mean."""
    part_of: str = ""
    """Another benchmark of the same model and kind whose average counts this one already."""
    note: str = ""
    teacher_error: float | None = None
    """Standard error that the source states."""
    student_error: float | None = None
    is_average: bool = False
    """Whether it was read from a log without samples."""

    @model_validator(mode="after")
    def _has_scores_or_recovery(self) -> Self:
        scores = {self.teacher_score is None, self.student_score is None}
        if scores != {self.recovery is not None}:
            raise ValueError("expected 'teacher_score' and 'student_score', or 'recovery' alone")
        return self

    @property
    def origin(self) -> str:
        """Who measured it, as the page marks it."""
        if self.is_average:
            return "printed average"
        return "evalsuite" if self.source.startswith("reports/results/") else "printed"


def read_figures(path: Path = FILE) -> list[Figure]:
    """Read and check a CSV file of figures; its columns are the fields of `Figure`, and empty cells unknown.

    Raises:
        ConfigError: an unknown column or kind, a missing field, or a number outside its range, with its line.
        DataError: a line with more cells than the header.
    """
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        figures = []
        for row in reader:
            place = f"{path}, line {reader.line_num}"
            if None in row:
                raise DataError(f"{place}: more cells than columns")
            figures.append(parse({name: cell for name, cell in row.items() if cell}, Figure, place))
        return figures
