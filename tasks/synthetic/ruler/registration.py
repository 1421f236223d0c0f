"""Registration of RULER and the other tasks of a stated length as a document generator."""

from evalsuite.foundation import ConfigError
from evalsuite.tasks.generator import Generator, NeedleMarks, Row, RowRequest
from evalsuite.tasks.synthetic.ruler import answer_prefix_start, niah, rows


def ruler(request: RowRequest) -> list[Row]:
    """Documents of a stated length: RULER's 13 tasks, key-value retrieval and associative recall."""
    task, context, count_tokens = request.task, request.context, request.count_tokens
    if context is None or count_tokens is None:
        raise ConfigError(f"{task}: needs a checkpoint, whose tokenizer measures the length of its prompts")
    return rows(
        task,
        seed=request.seed,
        count=request.count,
        context=context,
        count_tokens=count_tokens,
        inputs=request.inputs,
    )


NEEDLE = NeedleMarks("One of the special magic ", "\nWhat is the special magic ")
"""In prompts of RULER, and of the pocket world, which has its words."""
SINGLE = [
    name
    for name, task in niah.TASKS.items()
    if task.haystack != "needles" and task.queries == task.values == 1
]
GENERATOR = Generator(
    ruler,
    counts_prompts=True,
    answer_prefix_start=answer_prefix_start,
    needles=dict.fromkeys(SINGLE, NEEDLE),
)
