"""Questions made from running text.

The last word of a passage, words missing from one of its sentences, and questions about simple statements.
"""

import random
import re
from collections.abc import Iterator

from evalsuite.distill.data.questions.formats import TrainingQuestion, choice, last_word, reading

_SENTENCE = re.compile(r"(?<=[.!?][\"”’']|[^A-Z\s][.!?])\s+(?=[\"“‘'A-Z])")
_NAMES = re.compile(r"(?<=[a-z,;] )(?:[A-Z][\w'-]+(?: [A-Z][\w'-]+){0,2}|\d[\d,.]*\d|\d)\b")
BLANK = "____"
_PASSAGE_WORDS = (50, 110)
_READING_WORDS = (60, 180)

_NAME = r"(?:(?:The|An?) )?[A-Z][\w'-]*(?: (?:of |the )?[A-Z][\w'-]*){0,4}"
_SUBJECT = rf"(?P<subject>{_NAME}|(?:The|An?) [a-z-]+(?: [a-z-]+){{0,2}})"
_PARTICIPLE = r"(?P<verb>[a-z]+ed|born|built|written|made|held|won|known|found|given|led|sold|taught|chosen)"
_REST = r"(?=[,.;]| and | but | when | while | after | before )"
_PASSIVE = rf"{_SUBJECT} (?P<be>is|was|were|are) {_PARTICIPLE}"
_DID = (
    "(?P<verb>discovered|invented|wrote|won|founded|led|published|directed|defeated|married|built|created|"
    "proposed|developed|joined|became|received|introduced|described|signed|killed|ruled|opened)"
)
_COUNT = r"(?P<answer>\d[\d,]*|two|three|four|five|six|seven|eight|nine|ten|twelve)"
_PHRASE = r"[^,.;()]{3,60}?"
_STATEMENTS = [
    (re.compile(pattern), question)
    for pattern, question in (
        (
            rf"{_PASSIVE} (?:in|on) (?P<answer>(?:[A-Z][a-z]+ )?\d[\w, ]*?){_REST}",
            "When {be} {subject} {verb}?",
        ),
        (rf"{_PASSIVE} (?:in|at) (?P<answer>{_NAME}){_REST}", "Where {be} {subject} {verb}?"),
        (rf"{_PASSIVE} by (?P<answer>{_PHRASE}){_REST}", "Who or what {be} {subject} {verb} by?"),
        (
            rf"{_PASSIVE} (?P<word>as|for|from|into|with|to) (?P<answer>{_PHRASE}){_REST}",
            "What {be} {subject} {verb} {word}?",
        ),
        (
            rf"{_SUBJECT} (?P<be>is|was|were|are) (?P<answer>(?:an?|the|one of) {_PHRASE}){_REST}",
            "What {be} {subject}?",
        ),
        (rf"(?P<answer>{_NAME}) {_DID} (?P<object>{_PHRASE}){_REST}", "Who {verb} {object}?"),
        (
            rf"{_SUBJECT} (?:has|have|had|contains?|includes?) {_COUNT} (?P<things>[a-z]+s)\b",
            "How many {things} does {subject} have?",
        ),
    )
]
"""(statement, the question that its `answer` answers)."""
_PRONOUN = re.compile(r"(?:It|He|She|They|This|That|These|Those|There|We|You|I|What|Who)(?!\S)")


def last_words(text: str, origin: str, rng: random.Random) -> Iterator[TrainingQuestion]:
    """Yield passages of a narrative that have the letters of their last word before it, as in LAMBADA."""
    for passage, _ in _passages(text, _PASSAGE_WORDS, rng):
        match = re.search(r" ([A-Za-z]{3,})[.!?]+[\"”’']?$", passage)
        if match is None or passage.count(match[1]) < 2:
            continue
        yield last_word(passage[: match.end(1)], origin)


def blanks(text: str, origin: str, rng: random.Random) -> Iterator[TrainingQuestion]:
    """Yield passages with a sentence of theirs that lacks a name or number; every other one has options."""
    for passage, sentences in _passages(text, _READING_WORDS, rng):
        spans = list(dict.fromkeys(_NAMES.findall(passage)))
        whole = rng.choice(sentences).strip()
        own = [span for span in spans if whole.count(span) == 1 and passage.count(span) == 1]
        if len(spans) < 4 or not own or not 6 <= len(whole.split()) <= 40:
            continue
        answer = rng.choice(own)
        question = f"Which words of the passage belong in the blank? {whole.replace(answer, BLANK)}"
        others = [span for span in spans if span not in answer and answer not in span]
        if len(others) >= 3 and rng.random() < 0.5:
            options = [answer, *rng.sample(others, 3)]
            rng.shuffle(options)
            yield choice(passage, question, options, answer, origin)
        else:
            yield reading(passage, question, answer, origin)


def statements(text: str, origin: str, rng: random.Random) -> Iterator[TrainingQuestion]:
    """Yield passages with a question about a simple statement in them."""
    for passage, _ in _passages(text, _READING_WORDS, rng):
        found = [
            (question.format(**match.groupdict() | {"subject": _inside(match)}), match["answer"].strip())
            for pattern, question in _STATEMENTS
            for match in pattern.finditer(passage)
            if not _PRONOUN.match(match[0])
        ]
        if found:
            question, answer = rng.choice(found)
            yield reading(passage, question, answer, f"{origin} (statements)")


def _inside(match: re.Match[str]) -> str:
    """The subject as it stands inside a sentence: without the capital letter of an article."""
    subject = match.groupdict().get("subject") or ""
    article, space, rest = subject.partition(" ")
    return f"{article.lower()}{space}{rest}" if article in ("The", "A", "An") else subject


def _passages(text: str, words: tuple[int, int], rng: random.Random) -> Iterator[tuple[str, list[str]]]:
    """Non-overlapping runs of sentences, each as a text with a number of words drawn from `words`, and as a
    list."""
    wanted, size = rng.randint(*words), 0
    run: list[str] = []
    for sentence in _SENTENCE.split(text):
        run.append(sentence)
        size += len(sentence.split())
        if size < wanted:
            continue
        if size <= words[1] + 20 and not any("http" in each for each in run):
            yield " ".join(" ".join(run).split()), run
        run, size, wanted = [], 0, rng.randint(*words)
