"""Documents of a stated length: RULER's 13 tasks, key-value retrieval and associative recall.

Each document is drawn from its own seed (task, seed, index, context), so no other document, length or order
affects it. The prompt and the tokens reserved for the answer fit the stated length, and one more unit of
filler would not.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from evalsuite.foundation import ConfigError, content_hash, nearest
from evalsuite.tasks.synthetic.ruler import aggregation, key_value, niah, qa, variable_tracking
from evalsuite.tasks.synthetic.ruler.fit_to_length import CountTokens

THREADS = 4
"""Documents that are drawn at a time."""

Row = dict[str, Any]
Draw = Callable[[str, int, CountTokens], Row]

_WITHOUT_INPUTS: dict[str, Draw] = {
    "vt": variable_tracking.draw,
    "cwe": aggregation.draw_common_words,
    "fwe": aggregation.draw_frequent_words,
    "kv_retrieval": key_value.draw_json,
    "mqar": key_value.draw_mqar,
}
_QA_TASKS = ("qa_1", "qa_2")
TOKENS_TO_GENERATE: dict[str, int] = {
    **dict.fromkeys(niah.TASKS, niah.TOKENS_TO_GENERATE),
    **dict.fromkeys(niah.CHOICE_TASKS, niah.CHOICE_TOKENS_TO_GENERATE),
    "vt": variable_tracking.TOKENS_TO_GENERATE,
    "cwe": aggregation.COMMON_TOKENS_TO_GENERATE,
    "fwe": aggregation.FREQUENT_TOKENS_TO_GENERATE,
    **dict.fromkeys(_QA_TASKS, qa.TOKENS_TO_GENERATE),
    "kv_retrieval": key_value.JSON_TOKENS_TO_GENERATE,
    "mqar": key_value.MQAR_TOKENS_TO_GENERATE,
}
"""Task → tokens reserved for the answer."""
_ANSWER_PREFIXES: dict[str, str] = {
    **dict.fromkeys(niah.TASKS | niah.CHOICE_TASKS, " The special magic "),
    **dict.fromkeys(("vt", "cwe", "fwe", *_QA_TASKS), " Answer:"),
}


def rows(
    task: str,
    *,
    seed: int,
    count: int,
    context: int,
    count_tokens: CountTokens,
    inputs: Sequence[list[Row]] = (),
) -> list[Row]:
    """Return documents of one task and length; fewer than `count` if the inputs hold too few questions.

    Args:
        task: a key of `TOKENS_TO_GENERATE`.
        seed: of all documents.
        count: number of documents.
        context: length in tokens of a prompt and the tokens reserved for its answer.
        count_tokens: number of tokens of a text; called in several threads.
        inputs: rows of the essays (haystacks of essays) or of the questions (`qa_1`, `qa_2`).

    Returns:
        Rows {"prompt", "answers", "units", …}: the texts that a response must contain, and the amount of
        filler.

    Raises:
        ConfigError: an unknown task, or a context too short for the question itself.
        DataError: inputs with unexpected columns, or too few of them.
    """
    if task not in TOKENS_TO_GENERATE:
        raise ConfigError(f"unknown RULER task '{task}'{nearest(task, TOKENS_TO_GENERATE)}")
    found = []
    for row in _draw_all(task, seed, count, context, count_tokens, inputs):
        found.append(row)
        if len(found) == count:
            break
    if not found:
        raise ConfigError(
            f"{task}: {context} tokens are too few for the question, its minimum filler and "
            f"{TOKENS_TO_GENERATE[task]} tokens of the answer; use a longer context"
        )
    return found


def answer_prefix_start(task: str, prompt: str) -> int:
    """Return where RULER's `answer_prefix`, which ends every prompt, begins.

    Returns:
        An index into `prompt`; its length if the prompt has no answer prefix.
    """
    prefix = _ANSWER_PREFIXES.get(task)
    start = prompt.rfind(prefix) if prefix is not None else -1
    return start if start >= 0 else len(prompt)


def _draw_all(
    task: str, seed: int, count: int, context: int, count_tokens: CountTokens, inputs: Sequence[list[Row]]
) -> Iterator[Row]:
    def document_seed(index: int) -> str:
        return content_hash([task, seed, index, context])

    if task in _QA_TASKS:
        corpus = qa.Corpus(task, _single_input(task, inputs))
        for index, question in enumerate(corpus.shuffled(seed)):
            if row := qa.draw(task, corpus, question, document_seed(index), context, count_tokens):
                yield row
        return
    essays = None
    needles = (niah.TASKS | niah.CHOICE_TASKS).get(task)
    if needles is not None and needles.haystack == "essay":
        essays = niah.Essays.of_rows(_single_input(task, inputs))

    def draw(index: int) -> Row:
        if task in _WITHOUT_INPUTS:
            return _WITHOUT_INPUTS[task](document_seed(index), context, count_tokens)
        return niah.draw(task, document_seed(index), context, count_tokens, essays)

    # Most of the time goes into counting tokens, which needs no interpreter.
    pool = ThreadPoolExecutor(THREADS)
    try:
        for row in pool.map(draw, range(count)):
            if not row:
                return
            yield row
    finally:
        pool.shutdown(cancel_futures=True)


def _single_input(task: str, inputs: Sequence[list[Row]]) -> list[Row]:
    if len(inputs) != 1:
        raise ConfigError(f"{task}: 'generated.inputs' must list one split, not {len(inputs)}")
    return inputs[0]
