"""Whether a response names a choice, by a pattern rather than by a capital letter that happens to be last.

EvalScope reads ``ANSWER: X``, and without it takes the last capital letter of the response, inside words too
(`_fallback_parse_answer` of `evalscope/utils/multi_choices.py`). Scores are left as they are; what counts as
an answer is decided here.
"""

import re
from collections.abc import Sequence

LABELS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_OPEN = r"[\s:：<\"'“”‘’*_`$(\[（【{「]{0,12}(?:\\(?:boxed|fbox|text|textbf|mathbf|mathrm|\()\s?\{?\s?){0,3}"
_END = r"(?![\w'’])"
_REASON = r"(?:because|since|as|is|and|or|but|which|not)\b"
_LIST = r"\s*[,，/、&]?\s*(?:(?:and|or|和|或)\s+)?"
_CHOICE = r"(?:(?:option|choice|letter|answer|选项)\s+)?"
_STATEMENTS = (
    # ANSWER: B, the correct answer would be B
    r"(?i:\banswer\b[^.\n:：]{0,60}?(?:\b(?:is|would be|should be)\b|[:：]))",
    # 答案：B, 答案应该是B
    r"答案[^。\n:：A-Z]{0,20}?(?:应该是|应为|[是为选:：])",
    # I'd go with B, I think it is B
    r"(?i:\b(?:i|i['’]d|i['’]ll|we)\s+(?:would\s+|will\s+)?"
    r"(?:choose|chose|pick|select|say|answer|think|believe|go with|guess)"
    r"(?:\s+(?:that\s+)?(?:it is|it['’]s))?)",
    # my choice is B, it's B, probably B, 选B
    r"(?i:\b(?:choice|option|selection|letter|guess)\s*(?:is|[:：])"
    r"|\b(?:it['’]s|it is|probably|maybe))",
    r"(?:应选|故选|选择|选)",
)
_IS_CORRECT = (
    r"[\"'*_`)\]}]{0,6}\s(?i:(?:is|are|seems|looks)\s(?:the\s|probably\s)?"
    r"(?:correct|right|best|true|answer))"
)
_CLOSED = r"[\"'’*_`$)\]}）】」\\]{0,12}(?:\s?$|[)\].:：）】、,，。]|\s[-–—=]\s)"


def names_choice(response: str, letter: str, options: Sequence[str]) -> bool:
    """Return whether a response names a choice.

    The strongest pattern that the response has decides: a statement (``ANSWER: B``, ``The answer is B``,
    ``B is correct``), a line that is a label or begins with one (``B``, ``B) text``), a label within the text
    (``(B)``, ``option B``), the text of an option. Several labels of the last three kinds name none of them.

    Args:
        response: the text.
        letter: label of the choice.
        options: texts of all choices, whose labels are A, B, C, …
    """
    # Patterns expect single spaces, so that runs of them cost no more than their length.
    text = re.sub(r"\s+", lambda run: "\n" if "\n" in run[0] else " ", response)
    for named, several in _patterns(text, options):
        if named:
            return letter in named and (several or len(named) == 1)
    return False


def _patterns(response: str, options: Sequence[str]) -> "Sequence[tuple[set[str], bool]]":
    """The labels that each kind of pattern finds, strongest first, and whether it may find several."""
    labels = LABELS[: len(options)]
    label = f"[{''.join(labels)}]" if labels else "(?!)"
    return (
        (_stated(response, label), True),
        (_leading(response, label, options), False),
        (_mentioned(response, label), False),
        (_quoted(response, labels, options), False),
    )


def _stated(response: str, label: str) -> set[str]:
    found: set[str] = set()
    for statement in _STATEMENTS:
        for match in re.finditer(f"(?:{statement}){_OPEN}{_CHOICE}{_OPEN}({label}){_END}", response):
            if _is_label(response, match.end(1), match[1]):
                found.add(match[1])
                # ANSWER: A, C
                more = re.compile(f"{_LIST}({label}){_END}")
                at = match.end(1)
                while (other := more.match(response, at)) and _is_label(response, other.end(1), other[1]):
                    found.add(other[1])
                    at = other.end(1)
    found |= {match[1] for match in re.finditer(rf"\\(?:boxed|fbox)\s*\{{{_OPEN}({label}){_END}", response)}
    found |= {match[1] for match in re.finditer(rf"(?<![\w'’])({label}){_IS_CORRECT}", response)}
    return found


def _leading(response: str, label: str, options: Sequence[str]) -> set[str]:
    lines = re.finditer(rf"^{_OPEN}{_CHOICE}({label}){_CLOSED}", response, re.MULTILINE)
    found = {match[1] for match in lines}
    if begin := re.match(rf"{_OPEN}({label})\s+(.*)", response):
        # B because it floats; B the second option's own text
        text = _words(options[LABELS.index(begin[1])])
        if re.match(_REASON, begin[2]) or (text and f"{_words(begin[2])} ".startswith(f"{text} ")):
            found.add(begin[1])
    return found


def _mentioned(response: str, label: str) -> set[str]:
    patterns = (
        rf"[(\[（【]\s*({label})\s*[)\]）】]",
        rf"(?i:\b(?:option|choice|letter)|选项)\s*({label}){_END}",
    )
    return {
        match[1]
        for pattern in patterns
        for match in re.finditer(pattern, response)
        if _is_label(response, match.end(1), match[1])
    }


def _quoted(response: str, labels: Sequence[str], options: Sequence[str]) -> set[str]:
    text = f" {_words(response)} "
    quoted = {
        name: words
        for name, option in zip(labels, options, strict=False)
        if (words := _words(option)) and f" {words} " in text
    }
    return {
        name
        for name, words in quoted.items()
        if not any(words != other and f" {words} " in f" {other} " for other in quoted.values())
    }


def _is_label(response: str, end: int, letter: str) -> bool:
    """Whether a letter is a label, not an article or a pronoun: "A cat", "I think"."""
    follows = re.match(r"[ \t]+([a-z]\w*)", response[end : end + 40])
    return letter not in "AI" or follows is None or re.match(_REASON, follows[1]) is not None


def _words(text: str) -> str:
    words = re.findall(r"\w+", text.lower())
    return " ".join([word for word in words if word not in ("a", "an", "the")] or words)
