"""Documents made to a length: RULER's 13 tasks, key-value retrieval and associative recall.

Each document is drawn from a seed of its own (benchmark, seed, number, context): no other document, length
or order changes it. Prompt and answer's reserve fit the stated length in tokens, and one more unit of
filler would not.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from evalsuite.foundation import ConfigError, content_hash, nearest
from evalsuite.tasks.sized import chains, counting, needles, pairs, passages
from evalsuite.tasks.sized.fitting import CountTokens

Row = dict[str, Any]
Draw = Callable[[str, int, CountTokens], Row]

_ALONE: dict[str, Draw] = {
    "vt": chains.draw,
    "cwe": counting.draw_list,
    "fwe": counting.draw_coded,
    "kv_retrieval": pairs.draw_json,
    "mqar": pairs.draw_recall,
}
_QUESTIONS = ("qa_1", "qa_2")
RESERVES: dict[str, int] = {
    **dict.fromkeys(needles.TASKS, needles.RESERVE),
    "vt": chains.RESERVE,
    "cwe": counting.LIST_RESERVE,
    "fwe": counting.CODED_RESERVE,
    **dict.fromkeys(_QUESTIONS, passages.RESERVE),
    "kv_retrieval": pairs.JSON_RESERVE,
    "mqar": pairs.RECALL_RESERVE,
}
"""Tokens kept free for an answer, by kind."""
_ANSWERS_BEGIN: dict[str, str] = {
    **dict.fromkeys(needles.TASKS, " The special magic "),
    **dict.fromkeys(("vt", "cwe", "fwe", *_QUESTIONS), " Answer:"),
}


def rows(
    kind: str,
    *,
    seed: int,
    count: int,
    context: int,
    count_tokens: CountTokens,
    read: Sequence[list[Row]] = (),
) -> list[Row]:
    """Return documents of one kind and length, fewer than `count` if there are not enough questions.

    Args:
        kind: a key of `RESERVES`.
        seed: of all documents.
        count: how many.
        context: tokens that a prompt and its answer's reserve may have together.
        count_tokens: tokens of a prompt.
        read: rows of the essays (haystacks of essays) or of the questions (`qa_1`, `qa_2`).

    Returns:
        Rows {"prompt", "answers", "units", …}: the texts that an answer must hold, and how much filler
        there is.

    Raises:
        ConfigError: an unknown kind, or a context that does not hold the question itself.
        DataError: data in other columns than it should have, or not enough of it.
    """
    if kind not in RESERVES:
        raise ConfigError(f"unknown kind '{kind}'{nearest(kind, RESERVES)}")
    found = []
    for row in _drawn(kind, seed, count, context, count_tokens, read):
        found.append(row)
        if len(found) == count:
            break
    if not found:
        raise ConfigError(
            f"{kind}: {context} tokens do not hold the question, its least filler and {RESERVES[kind]} "
            "tokens of an answer; ask for a longer context"
        )
    return found


def answer_begins(kind: str, prompt: str) -> int:
    """Return where in a prompt its answer is begun: RULER's `answer_prefix`, which ends every prompt.

    Returns:
        A place in `prompt`; its length where nothing of an answer is given.
    """
    mark = _ANSWERS_BEGIN.get(kind)
    at = prompt.rfind(mark) if mark is not None else -1
    return at if at >= 0 else len(prompt)


def _drawn(
    kind: str, seed: int, count: int, context: int, tokens: CountTokens, read: Sequence[list[Row]]
) -> Iterator[Row]:
    def own(number: int) -> str:
        return content_hash([kind, seed, number, context])

    if kind in _QUESTIONS:
        library = passages.Library(kind, _only(kind, read))
        for number, asked in enumerate(library.order(seed)):
            if row := passages.draw(kind, library, asked, own(number), context, tokens):
                yield row
        return
    essays = None
    if kind in needles.TASKS and needles.TASKS[kind].haystack == "essay":
        essays = needles.Essays(_only(kind, read))
    for number in range(count):
        if kind in _ALONE:
            row = _ALONE[kind](own(number), context, tokens)
        else:
            row = needles.draw(kind, own(number), context, tokens, essays)
        if not row:
            return
        yield row


def _only(kind: str, read: Sequence[list[Row]]) -> list[Row]:
    if len(read) != 1:
        raise ConfigError(f"{kind}: its benchmark must read one split ('generated.reads'), not {len(read)}")
    return read[0]
