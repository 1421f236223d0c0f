"""LongBench's metrics (Bai et al. 2023, arXiv 2308.14508; github.com/THUDM/LongBench, `metrics.py`).

Each compares a response with one reference and returns a number from 0 to 1; the best reference counts. A
scorer's name that ends in `_line` reads only the first line of the response.
Their quirks are kept on purpose, so that scores are comparable with published ones.
"""

import ast
import re
import string
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from functools import cache, partial
from typing import Any

from evalsuite.foundation import DataError, words
from evalsuite.foundation.words import english_words, f1_of_words, first_line
from evalsuite.protocols.scorers.base import SCORERS, Scorer, ScorerOutput

Metric = Callable[[str, str], float]

_CHINESE_PUNCTUATION = (
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿"
    "–—‘’‛“”„‟…‧﹏."
)
_NUMBERS = re.compile(r"\d+")


def best(metric: Metric, response: str, references: Sequence[str]) -> float:
    """Return the best score over all references."""
    return max((metric(response, reference) for reference in references), default=0.0)


def qa_f1(response: str, reference: str) -> float:
    """Return the F1 over words, ignoring case, punctuation and articles."""
    return f1_of_words(english_words(response), english_words(reference))


def qa_f1_zh(response: str, reference: str) -> float:
    """Return the F1 over jieba's words, ignoring case and punctuation."""
    return f1_of_words(_chinese(response), _chinese(reference))


def rouge(response: str, reference: str) -> float:
    """Return ROUGE-L's F over whole summaries, as the package `rouge` computes it; 0 if it raises."""
    try:
        return float(_rouge().get_scores([response], [reference], avg=True)["rouge-l"]["f"])
    except (ValueError, RecursionError):
        return 0.0


def rouge_zh(response: str, reference: str) -> float:
    """Return `rouge` over jieba's words."""
    return rouge(" ".join(_cut(response)), " ".join(_cut(reference)))


def classification(response: str, reference: str, classes: Sequence[str]) -> float:
    """Return 1/n if the reference is among the n classes named; classes within its name do not count."""
    named = [each for each in classes if each in response]
    # As LongBench does, this removes from the list under iteration: of two in a row, the second remains.
    for each in named:
        if each in reference and each != reference:
            named.remove(each)
    return 1 / len(named) if reference in named else 0.0


def classes_of(row: dict[str, Any]) -> list[str]:
    """Return the classes of a row; some copies of the data store the list as text.

    Raises:
        DataError: the row has none.
    """
    found = row.get("all_classes")
    if isinstance(found, str):
        found = ast.literal_eval(found)
    if not isinstance(found, list) or not found:
        raise DataError(f"LongBench: a row of {row.get('dataset', '?')} has no 'all_classes'")
    return [str(each) for each in found]


def count(response: str, reference: str) -> float:
    """Return the share of the numbers in a response that equal the reference."""
    numbers = _NUMBERS.findall(response)
    return numbers.count(str(reference)) / len(numbers) if numbers else 0.0


def retrieval(response: str, reference: str) -> float:
    """Return `count` of the paragraph's number."""
    return count(response, _paragraph(r"Paragraph (\d+)", reference))


def retrieval_zh(response: str, reference: str) -> float:
    """Return `count` of the paragraph's number."""
    return count(response, _paragraph(r"段落(\d+)", reference))


def code_sim(response: str, reference: str) -> float:
    """Return the similarity, in whole percent, of the first line of code (no comment or code fence)."""
    lines = (line for line in response.split("\n") if line.strip())
    line = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    if line == reference:
        return 1.0
    if not line or not reference:
        return 0.0
    # Equals `fuzz.ratio` of fuzzywuzzy without python-Levenshtein.
    return round(100 * SequenceMatcher(None, line, reference).ratio()) / 100


def _chinese(text: str) -> list[str]:
    dropped = {*string.punctuation, *_CHINESE_PUNCTUATION}
    bare = (
        "".join("".join(letter for letter in word.lower() if letter not in dropped).split())
        for word in _cut(text)
    )
    return [word for word in bare if word]


def _paragraph(pattern: str, reference: str) -> str:
    found = re.search(pattern, reference)
    if found is None:
        raise DataError(f"LongBench: the reference {reference[:40]!r} has no paragraph number")
    return found.group(1)


def _cut(text: str) -> list[str]:
    return list(_jieba().cut(text, cut_all=False))


@cache
def _jieba() -> Any:
    import jieba

    jieba.setLogLevel("ERROR")
    return jieba


@cache
def _rouge() -> Any:
    from rouge import Rouge

    return Rouge(metrics=["rouge-l"])


def _score(
    name: str, metric: Metric, row: Mapping[str, Any], response: str, *, line: bool = False
) -> ScorerOutput:
    read = first_line(response) if line else response
    # Indentation is part of code.
    read = read if name == "code_sim" else read.strip()
    references = [str(answer) for answer in row["answers"]]
    return ScorerOutput({name: best(metric, read, references)}, read.strip(), " | ".join(references))


def _classification(row: Mapping[str, Any], response: str) -> ScorerOutput:
    """Return LongBench's classification score of the first line against the classes of the row."""
    metric = partial(classification, classes=classes_of(dict(row)))
    return _score("classification", metric, row, response, line=True)


_ROUGE = {"rouge": "rouge==1.0.1"}
_JIEBA = {"jieba": "jieba"}

for _metric, _packages in (
    (qa_f1, {}),
    (qa_f1_zh, _JIEBA),
    (rouge, _ROUGE),
    (rouge_zh, _ROUGE | _JIEBA),
    (count, {}),
    (retrieval, {}),
    (retrieval_zh, {}),
    (code_sim, {}),
):
    _name = _metric.__name__
    SCORERS.add(_name, Scorer(partial(_score, _name, _metric), modules=(words,), packages=_packages))
for _metric, _packages in ((qa_f1, {}), (rouge, _ROUGE)):
    _name = _metric.__name__
    _function = partial(_score, _name, _metric, line=True)
    SCORERS.add(f"{_name}_line", Scorer(_function, modules=(words,), packages=_packages))
SCORERS.add("classification", Scorer(_classification, modules=(words,)))
