"""LongBench's metrics (Bai et al. 2023, arXiv 2308.14508; github.com/THUDM/LongBench, `metrics.py`).

Each compares a response with one reference and gives a number from 0 to 1; the best reference counts.
What is odd in them is theirs: scores must be comparable with published ones.
"""

import ast
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from functools import cache
from typing import Any

from evalsuite.foundation import DataError, MissingDependencyError

Metric = Callable[[str, str], float]

_CHINESE_PUNCTUATION = (
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿"
    "–—‘’‛“”„‟…‧﹏."
)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NUMBERS = re.compile(r"\d+")


def best(metric: Metric, response: str, references: Sequence[str]) -> float:
    """The best score over all references."""
    return max((metric(response, reference) for reference in references), default=0.0)


def first_line(response: str) -> str:
    """The first line that is not empty: few-shot answers of trec, triviaqa, samsum and lsht end there."""
    return response.lstrip("\n").split("\n")[0]


def qa_f1(response: str, reference: str) -> float:
    """F1 over words, without case, punctuation and articles."""
    return _f1(_english(response).split(), _english(reference).split())


def qa_f1_zh(response: str, reference: str) -> float:
    """F1 over jieba's words, without case and punctuation."""
    return _f1(_chinese(response), _chinese(reference))


def rouge(response: str, reference: str) -> float:
    """F of ROUGE-L over whole summaries, as the package `rouge` computes it; 0 for what it cannot read."""
    try:
        return float(_rouge().get_scores([response], [reference], avg=True)["rouge-l"]["f"])
    except (ValueError, RecursionError):
        return 0.0


def rouge_zh(response: str, reference: str) -> float:
    """`rouge` over jieba's words."""
    return rouge(" ".join(_cut(response)), " ".join(_cut(reference)))


def classification(response: str, reference: str, classes: Sequence[str]) -> float:
    """One over the number of classes named, if the right one is; classes within its name do not count."""
    named = [each for each in classes if each in response]
    # LongBench removes from the list that it runs over: of two in a row, the second one stays.
    for each in named:
        if each in reference and each != reference:
            named.remove(each)
    return 1 / len(named) if reference in named else 0.0


def classes_of(row: dict[str, Any]) -> list[str]:
    """The classes of a row; some copies of the data keep the list as text.

    Raises:
        DataError: there are none.
    """
    found = row.get("all_classes")
    if isinstance(found, str):
        found = ast.literal_eval(found)
    if not isinstance(found, list) or not found:
        raise DataError(f"LongBench: a question of {row.get('dataset', '?')} names no 'all_classes'")
    return [str(each) for each in found]


def count(response: str, reference: str) -> float:
    """The share of the numbers in a response that are the right one."""
    numbers = _NUMBERS.findall(response)
    return numbers.count(str(reference)) / len(numbers) if numbers else 0.0


def retrieval(response: str, reference: str) -> float:
    """`count` of the paragraph's number."""
    return count(response, _paragraph(r"Paragraph (\d+)", reference))


def retrieval_zh(response: str, reference: str) -> float:
    """`count` of the paragraph's number."""
    return count(response, _paragraph(r"段落(\d+)", reference))


def code_sim(response: str, reference: str) -> float:
    """Similarity, in whole percent, of the first line of code: neither blank, comment nor code fence."""
    lines = (line for line in response.split("\n") if line.strip())
    line = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    if line == reference:
        return 1.0
    if not line or not reference:
        return 0.0
    # `fuzz.ratio` of fuzzywuzzy, without python-Levenshtein, is this.
    return round(100 * SequenceMatcher(None, line, reference).ratio()) / 100


def _f1(response: Sequence[str], reference: Sequence[str]) -> float:
    same = sum((Counter(response) & Counter(reference)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(response), same / len(reference)
    return 2 * precision * recall / (precision + recall)


def _english(text: str) -> str:
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return _ARTICLES.sub(" ", bare)


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
        raise DataError(f"LongBench: the reference {reference[:40]!r} names no paragraph")
    return found.group(1)


def _cut(text: str) -> list[str]:
    return list(_jieba().cut(text, cut_all=False))


@cache
def _jieba() -> Any:
    try:
        import jieba
    except ImportError as error:
        raise MissingDependencyError("Chinese answers are compared by words; `pip install jieba`") from error
    jieba.setLogLevel("ERROR")
    return jieba


@cache
def _rouge() -> Any:
    try:
        from rouge import Rouge
    except ImportError as error:
        raise MissingDependencyError(
            "summaries are compared by ROUGE-L of the package rouge; `pip install rouge==1.0.1`"
        ) from error
    return Rouge(metrics=["rouge-l"])


def require(name: str) -> None:
    """Raise MissingDependencyError if the metric of this name needs a package that is not there."""
    if name.startswith("rouge"):
        _rouge()
    if name.endswith("_zh") and name != "retrieval_zh":
        _jieba()
