"""SciQ: questions that have a passage."""

from evalsuite.tasks.generator import Row
from evalsuite.tasks.sources.data import DataSource
from evalsuite.tasks.sources.transforms.base import TRANSFORMS, Transform


def with_passage(rows: list[Row], data: DataSource) -> list[Row]:
    """SciQ: the rows whose `support` is not empty."""
    return [row for row in rows if row["support"].strip()]


TRANSFORMS.add("with_passage", Transform(with_passage))
