"""What a harness's extracted answer rests on, and where a response goes on with a next question."""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal

from evalsuite.foundation.named_answers import LABELS, names_choice

Basis = Literal["answer", "guess", "nothing"]
"""An answer that the response gives, a choice that it does not name, or text that is no answer."""

MAX_CUTS = 4
"""Places of a response that are tried as the start of a next question."""

_OF_CODE = ("humaneval", "mbpp")
"""EvalScope benchmarks whose responses are code."""
_OF_FORM = ("ifeval", "ifbench", "openai_mrcr", "live_code_bench")
"""EvalScope benchmarks that score a text's form, its likeness to another or its last block of code: a part of
it may score more."""
_END_OF_TEXT = r"<\|endoftext\|>|<\|im_end\|>|<\|eot_id\|>|</s>"
_NEXT_TEXT = re.compile(
    # A labelled question, the turn of a user, a list of choices, an instruction, the reasoning of an example.
    r"\s[#*]*(?:next\s+)?(?:question|problem|exercise|passage|instruction|q|问题|题目)\s*\d*\**\s*[:：]"
    r"|\n[ \t]{0,8}(?:(?:user|human)\s*:|A[).．、]\s|answer the following|here are some examples)"
    r"|\n[ \t]{0,8}(?:回答下面|以下是)|\n\n[ \t]{0,8}reasoning:|" + _END_OF_TEXT,
    re.IGNORECASE,
)
_NEXT_CODE = re.compile(
    r"\n(?:async def |def |class |print\(|assert |import |from |if __name__|# |@|```|Read the following)"
    r"|" + _END_OF_TEXT
)
_OPTION = re.compile(r"^[ \t]*\(?([A-Z])[).．、]\s+(.*)$", re.MULTILINE)
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)", re.MULTILINE)
_BLOCK = re.compile(r"```\w*\n(.*?)```", re.DOTALL)
_PROSE = re.compile(r"\s*[A-Z][a-z'’]*[ ,!]")
_CODE = re.compile(r"^(?:[ \t]+\S|(?:async def|def|class|from|import|return)\s|@)", re.MULTILINE)


def parts_before_next_question(dataset: str, response: str) -> Iterator[str]:
    """Yield the parts of a response that end where a next question may start, shortest first.

    Args:
        dataset: the EvalScope benchmark, which says whether the response is code.
        response: the text; what starts it is no next question.
    """
    if dataset in _OF_FORM:
        return
    pattern = _NEXT_CODE if dataset in _OF_CODE else _NEXT_TEXT
    ends = [match.start() for match in islice(pattern.finditer(response), MAX_CUTS)]
    # A question without a label begins with the paragraph that holds its choices or its reasoning.
    ends += [response.rfind("\n\n", 0, end + 1) for end in ends]
    parts = {response[:end] for end in ends if end > 0}
    yield from sorted(filter(str.strip, parts), key=len)


def options_of(prompt: str) -> list[str]:
    """Return the texts of the choices that a prompt lists last, such as ``A) text``; empty for none."""
    found: list[str] = []
    for label, text in _OPTION.findall(prompt):
        if label == LABELS[0]:
            found = []
        if (label,) == LABELS[len(found) :][:1]:
            found.append(text.strip())
    return found if len(found) > 1 else []


def later_blocks(dataset: str, response: str) -> list[str]:
    """Return the fenced blocks of code that the harness, which takes the first one, leaves out."""
    return _BLOCK.findall(response)[1:][:MAX_CUTS] if dataset in _OF_CODE else []


def basis_of(dataset: str, response: str, extracted: str, options: Sequence[str]) -> Basis:
    """Return what an extracted answer rests on.

    Args:
        dataset: the EvalScope benchmark.
        response: the text.
        extracted: the harness's answer.
        options: texts of the choices; empty for a question without any.
    """
    if dataset in _OF_CODE:
        # The harness takes the whole text where it finds no complete block.
        is_text = _FENCE.search(extracted) or _PROSE.match(extracted) or not _CODE.search(extracted)
        return "nothing" if is_text else "answer"
    if dataset == "bbh" and "So the answer is " not in response:
        # The harness then takes a capital letter of the first line, or the whole line.
        if extracted not in LABELS:
            return "nothing"
        options = [""] * len(LABELS)
    if extracted in LABELS[: len(options)] and not _names(response, extracted, options):
        return "guess"
    return "answer"


def _names(response: str, letter: str, options: Sequence[str]) -> bool:
    """Whether a response names a choice, and not another one before it goes on with a next question."""
    if not names_choice(response, letter, options):
        return False
    own = next(parts_before_next_question("", response), response)
    named = [other for other in LABELS[: len(options)] if names_choice(own, other, options)]
    return not named or letter in named
