"""Questions of benchmark documents in training texts, also those that are too short for an n-gram."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalsuite.distill.data.decontamination.ngrams import ngram_hashes, strings, words

KEY_WORDS = 5
"""A question is looked up by its first words; shorter questions are not looked up."""
MAX_ANSWER_WORDS = 12
QUESTION_FIELDS = ("question", "prompt")
"""Fields of a row that hold its question; the first one that a row has counts."""


class QuestionIndex:
    """The questions and answers of the documents of several benchmarks.

    Args:
        rows: benchmark → its rows. Answers are all short strings of a row besides its question; of a row
            without any, the question alone is the pair.
    """

    def __init__(self, rows: Mapping[str, Sequence[Any]]) -> None:
        self._entries: dict[int, list[tuple[int, str, frozenset[str]]]] = defaultdict(list)
        self._num_benchmarks = len(rows)
        for benchmark, documents in enumerate(rows.values()):
            for row in documents:
                self._add(benchmark, row)
        self._keys = np.array(sorted(self._entries), dtype=np.uint64)

    def _add(self, benchmark: int, row: Any) -> None:
        if not isinstance(row, Mapping):
            return
        field = next((name for name in QUESTION_FIELDS if isinstance(row.get(name), str)), None)
        if field is None or not len(hashes := ngram_hashes(row[field], KEY_WORDS)):
            return
        others = strings({name: value for name, value in row.items() if name != field})
        answers = (found for text in others if 1 <= len(found := words(text)) <= MAX_ANSWER_WORDS)
        entry = (benchmark, _padded(words(row[field])), frozenset(map(_padded, answers)))
        self._entries[int(hashes[0])].append(entry)

    def match(self, texts: Iterable[tuple[str, str]]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which benchmarks' questions, and pairs of question and answer, training texts contain.

        Args:
            texts: T pairs of prompt and completion.

        Returns:
            Two arrays [T, benchmarks]: the prompt contains a question; and the completion one of its answers.
        """
        texts = list(texts)
        questions = np.zeros((len(texts), self._num_benchmarks), dtype=bool)
        pairs = np.zeros_like(questions)
        for number, (prompt, completion) in enumerate(texts):
            hashes = ngram_hashes(prompt, KEY_WORDS)
            found = np.unique(hashes[np.isin(hashes, self._keys)])
            if not len(found):
                continue
            prompt_words, completion_words = _padded(words(prompt)), _padded(words(completion))
            for benchmark, question, answers in (e for key in found for e in self._entries[int(key)]):
                if question in prompt_words:
                    questions[number, benchmark] = True
                    pairs[number, benchmark] |= not answers or any(
                        answer in completion_words for answer in answers
                    )
        return questions, pairs


def _padded(found: Sequence[str]) -> str:
    return f" {' '.join(found)} "
