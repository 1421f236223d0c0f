"""The harnesses, used without their logs, bars and changes to the root logger, without parsing anew, and
without chance."""

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any


@contextmanager
def quiet_harness() -> Iterator[None]:
    """Keep errors of lm-eval and EvalScope; drop their chatter and the bars of `datasets`.

    EvalScope reconfigures the root logger when it is imported; that is undone. What its IFEval says of an
    answer without a language, by which it decides as its authors do, would print every such answer twice.
    """
    import datasets

    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    for name in ("lm_eval", "evalscope", "math_verify"):
        _set_level(logging.getLogger(name), logging.ERROR)
    root.addFilter(_of_use)
    try:
        yield
    finally:
        root.removeFilter(_of_use)
        root.handlers[:] = handlers
        _set_level(root, level)
        if not bars:
            datasets.enable_progress_bars()


def _of_use(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Unable to detect language")


def _set_level(logger: logging.Logger, level: int) -> None:
    """Only where it changes: setting it makes every logger forget what it is enabled for."""
    if logger.level != level:
        logger.setLevel(level)


@contextmanager
def same_dice() -> Iterator[None]:
    """Let metrics that draw at random draw the same for every answer, and leave the caller's dice alone.

    IFEval counts a random letter where a question asks for a character that is none, as one does for "#".
    """
    before = random.getstate()
    random.seed(0)
    try:
        yield
    finally:
        random.setstate(before)


@lru_cache(maxsize=1024)
def _parsed(template: str) -> Any:
    from lm_eval.utils import env

    return type(env).from_string(env, template)


@contextmanager
def templates_parsed_once() -> Iterator[None]:
    """Keep lm-eval from parsing a task's Jinja templates again for every document and example.

    With five examples a document that is most of the time that its prompts take.
    """
    from lm_eval.utils import env

    env.from_string = _parsed
    try:
        yield
    finally:
        del env.from_string


def render_once(task: Any, docs: Sequence[Any]) -> None:
    """Let an lm-eval task keep what its templates make of these docs, which stay alive as long as it does.

    Judging asks for choices and gold answer of a document several times per answer.
    """
    mine = {id(doc) for doc in docs}

    def kept(render: Callable[..., Any]) -> Callable[..., Any]:
        made: dict[int, Any] = {}

        def of(doc: Any, *others: Any, **named: Any) -> Any:
            if others or named or id(doc) not in mine:
                return render(doc, *others, **named)
            if id(doc) not in made:
                made[id(doc)] = render(doc)
            return made[id(doc)]

        return of

    for name in ("doc_to_text", "doc_to_target", "doc_to_choice"):
        setattr(task, name, kept(getattr(task, name)))
