"""Registration of the English tasks as a document generator."""

from evalsuite.tasks.generator import Generator, Row, RowRequest
from evalsuite.tasks.synthetic.english import rows


def english(request: RowRequest) -> list[Row]:
    """Short English tasks with one right answer: arithmetic, and instructions on lists of words."""
    return rows(request.task, seed=request.seed, count=request.count)


GENERATOR = Generator(english)
