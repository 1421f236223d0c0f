"""Registration of the pocket world as a document generator."""

from evalsuite.tasks.generator import Generator, Row, RowRequest
from evalsuite.tasks.synthetic.pocket import niah
from evalsuite.tasks.synthetic.pocket.rows import rows
from evalsuite.tasks.synthetic.ruler.registration import NEEDLE


def pocket(request: RowRequest) -> list[Row]:
    """Questions about the pocket world, a small synthetic world with its own tokenizer."""
    return rows(
        request.task,
        seed=request.seed,
        count=request.count,
        context=request.context,
        count_tokens=request.count_tokens,
    )


GENERATOR = Generator(pocket, needles=dict.fromkeys(niah.TASKS, NEEDLE))
