"""Questions over passages: `qa_1` (SQuAD) and `qa_2` (HotpotQA) of RULER (arXiv 2404.06654).

Template, the choice of distracting passages and the 32 tokens for an answer are RULER's. SQuAD is version
1.1 here, whose development questions hold the answerable ones of RULER's 2.0; passages are added one at a
time, where RULER adds ten; a question whose own passages do not fit is left out for the next.
"""

import random
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evalsuite.foundation import DataError, content_hash
from evalsuite.tasks.sized.fitting import CountTokens, fill

RESERVE = 32
TEMPLATE = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other "
    "words.\n\nThe following are given documents.\n\n{context}\n\nAnswer the question based on the given "
    "documents. Only give me the answer and do not output any other words.\n\nQuestion: {query} Answer:"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, its references, its own passages, and passages of the same article."""

    query: str
    answers: tuple[str, ...]
    own: tuple[str, ...]
    article: str | None = None


class Library:
    """The questions and passages of a data set.

    Raises:
        DataError: rows in other columns than those of `rajpurkar/squad` or `hotpotqa/hotpot_qa`.
    """

    def __init__(self, kind: str, rows: list[dict[str, Any]]) -> None:
        read = _squad if kind == "qa_1" else _hotpot
        try:
            self.asked = [read(row) for row in rows]
        except (KeyError, TypeError) as error:
            raise DataError(f"{kind}: a row is not as its data set should be ({error!r})") from error

    @cached_property
    def passages(self) -> list[str]:
        """Every passage once, sorted."""
        return sorted({passage for asked in self.asked for passage in asked.own})

    @cached_property
    def _articles(self) -> dict[str, list[str]]:
        found: dict[str, dict[str, None]] = {}
        for asked in self.asked:
            if asked.article is not None:
                found.setdefault(asked.article, {}).update(dict.fromkeys(asked.own))
        return {name: list(passages) for name, passages in found.items()}

    def order(self, seed: int) -> list[Asked]:
        """The questions in the order in which they are asked."""
        return sorted(self.asked, key=lambda asked: content_hash([seed, asked.query, asked.own]))

    def distractors(self, asked: Asked, rng: random.Random) -> list[str]:
        """Passages to add to a question's own, first those of the same article."""
        near = [each for each in self._articles.get(asked.article or "", []) if each not in asked.own]
        taken = {*asked.own, *near}
        far = [passage for passage in self.passages if passage not in taken]
        return [*rng.sample(near, len(near)), *rng.sample(far, len(far))]


def _squad(row: dict[str, Any]) -> Asked:
    return Asked(row["question"], tuple(row["answers"]["text"]), (row["context"],), row["title"])


def _hotpot(row: dict[str, Any]) -> Asked:
    context = row["context"]
    own = [
        f"{title}\n{''.join(told)}"
        for title, told in zip(context["title"], context["sentences"], strict=True)
    ]
    return Asked(row["question"], (row["answer"],), tuple(own))


def draw(
    kind: str, library: Library, asked: Asked, seed: str, context: int, count: CountTokens
) -> dict[str, Any]:
    """Return one document, {} if the context does not hold the question's own passages.

    Returns:
        A row {"prompt", "answers", "units", "positions"}; positions are those of the question's own among
        the passages.

    Raises:
        DataError: all passages together do not fill the context.
    """
    rng = random.Random(seed)
    distractors = library.distractors(asked, rng)
    # Each passage keeps its place relative to the others, however many there are.
    places = {passage: rng.random() for passage in (*asked.own, *distractors)}

    def order(units: int) -> list[str]:
        return sorted((*asked.own, *distractors[:units]), key=places.__getitem__)

    def prompt(units: int) -> str:
        told = [f"Document {number}:\n{passage}" for number, passage in enumerate(order(units), 1)]
        return TEMPLATE.format(context="\n\n".join(told), query=asked.query)

    units = fill(prompt, count, context - RESERVE, least=0, most=len(distractors))
    if units < 0:
        return {}
    if units == len(distractors):
        raise DataError(
            f"{kind}: all {len(library.passages)} passages of its data make a prompt of "
            f"{count(prompt(units))} tokens, {context} were asked; its data may be there only in part"
        )
    positions = [number for number, passage in enumerate(order(units)) if passage in asked.own]
    return {"prompt": prompt(units), "answers": list(asked.answers), "units": units, "positions": positions}
