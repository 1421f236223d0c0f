"""Question answering over passages: `qa_1` (SQuAD) and `qa_2` (HotpotQA) of RULER (arXiv 2404.06654).

Template, the choice of distractors and the 32 answer tokens are RULER's. Differences: SQuAD is version 1.1,
whose development questions include the answerable ones of RULER's 2.0; passages are added one at a time
instead of ten; a question whose supporting passages do not fit is skipped.
"""

import random
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evalsuite.foundation import DataError, content_hash
from evalsuite.tasks.synthetic.ruler.fit_to_length import CountTokens, fit_to_length

TOKENS_TO_GENERATE = 32
TEMPLATE = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other "
    "words.\n\nThe following are given documents.\n\n{context}\n\nAnswer the question based on the given "
    "documents. Only give me the answer and do not output any other words.\n\nQuestion: {query} Answer:"
)


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its reference answers, its supporting passages and its article."""

    query: str
    answers: tuple[str, ...]
    supporting: tuple[str, ...]
    article: str | None = None


class Corpus:
    """Questions and passages of a dataset.

    Raises:
        DataError: rows without the columns of `rajpurkar/squad` or `hotpotqa/hotpot_qa`.
    """

    def __init__(self, task: str, rows: list[dict[str, Any]]) -> None:
        read = _squad if task == "qa_1" else _hotpot
        try:
            self.questions = [read(row) for row in rows]
        except (KeyError, TypeError) as error:
            raise DataError(f"{task}: a row lacks a column of its dataset ({error!r})") from error

    @cached_property
    def passages(self) -> list[str]:
        """Unique passages, sorted."""
        return sorted({passage for question in self.questions for passage in question.supporting})

    @cached_property
    def _articles(self) -> dict[str, list[str]]:
        found: dict[str, dict[str, None]] = {}
        for question in self.questions:
            if question.article is not None:
                found.setdefault(question.article, {}).update(dict.fromkeys(question.supporting))
        return {name: list(passages) for name, passages in found.items()}

    def shuffled(self, seed: int) -> list[Question]:
        """The questions in seeded order."""
        return sorted(self.questions, key=lambda each: content_hash([seed, each.query, each.supporting]))

    def distractors(self, question: Question, rng: random.Random) -> list[str]:
        """Passages to add to the supporting ones, those of the same article first."""
        near = [
            each for each in self._articles.get(question.article or "", []) if each not in question.supporting
        ]
        taken = {*question.supporting, *near}
        far = [passage for passage in self.passages if passage not in taken]
        return [*rng.sample(near, len(near)), *rng.sample(far, len(far))]


def _squad(row: dict[str, Any]) -> Question:
    return Question(row["question"], tuple(row["answers"]["text"]), (row["context"],), row["title"])


def _hotpot(row: dict[str, Any]) -> Question:
    context = row["context"]
    supporting = [
        f"{title}\n{''.join(sentences)}"
        for title, sentences in zip(context["title"], context["sentences"], strict=True)
    ]
    return Question(row["question"], (row["answer"],), tuple(supporting))


def draw(
    task: str, corpus: Corpus, question: Question, seed: str, context: int, count_tokens: CountTokens
) -> dict[str, Any]:
    """Return one document, {} if the context does not hold the question's own passages.

    Returns:
        A row {"prompt", "answers", "units", "positions"}; `positions` are the indices of the supporting
        passages.

    Raises:
        DataError: all passages together are shorter than the context.
    """
    rng = random.Random(seed)
    distractors = corpus.distractors(question, rng)
    # Adding a distractor does not reorder the other passages.
    sort_keys = {passage: rng.random() for passage in (*question.supporting, *distractors)}

    def order(units: int) -> list[str]:
        return sorted((*question.supporting, *distractors[:units]), key=sort_keys.__getitem__)

    def prompt(units: int) -> str:
        documents = [f"Document {number}:\n{passage}" for number, passage in enumerate(order(units), 1)]
        return TEMPLATE.format(context="\n\n".join(documents), query=question.query)

    units = fit_to_length(
        prompt, count_tokens, context - TOKENS_TO_GENERATE, min_units=0, max_units=len(distractors)
    )
    if units < 0:
        return {}
    if units == len(distractors):
        raise DataError(
            f"{task}: all {len(corpus.passages)} passages make a prompt of {count_tokens(prompt(units))} "
            f"tokens, fewer than {context}; the dataset may be incomplete"
        )
    positions = [number for number, passage in enumerate(order(units)) if passage in question.supporting]
    return {
        "prompt": prompt(units),
        "answers": list(question.answers),
        "units": units,
        "positions": positions,
    }
