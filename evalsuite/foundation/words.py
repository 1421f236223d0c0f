"""Words and lines of texts, as the scorers compare them."""

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")


def first_line(response: str) -> str:
    """Return the first non-empty line, where few-shot responses of trec, triviaqa, samsum and lsht end."""
    return response.lstrip("\n").split("\n")[0]


def english_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation and articles, as SQuAD's script does."""
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return _ARTICLES.sub(" ", bare).split()


def f1_of_words(response: Sequence[str], reference: Sequence[str]) -> float:
    """Return the F1 of the words that two texts share; 0 if they share none."""
    same = sum((Counter(response) & Counter(reference)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(response), same / len(reference)
    return 2 * precision * recall / (precision + recall)
