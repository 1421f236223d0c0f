"""Needle in a haystack: the eight retrieval tasks of RULER (Hsieh et al. 2024, arXiv 2404.06654, Table 5).

Template, needles, haystacks, depths and the 128 answer tokens are RULER's (`niah.py`, `constants.py`,
`synthetic.yaml` at github.com/NVIDIA/RULER). Differences: every document has its own seed; filler is added
one unit at a time instead of 5 to 500; sentence ends are found by a regular expression instead of NLTK's
punkt.

Four further tasks (`CHOICE_TASKS`) state four numbers in an excerpt of essays, one of which is queried, and
name numbers to compare it with: the others of the text, and others that are not in the text. Keys, excerpts
and numbers of the tasks that end in `_heldout` are disjoint from those of the others.
"""

import random
import re
import uuid
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, islice
from typing import Any

from evalsuite.foundation import DataError
from evalsuite.tasks.synthetic.ruler.fit_to_length import CountTokens, fit_to_length
from evalsuite.tasks.synthetic.ruler.words import words

TOKENS_TO_GENERATE = 128
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
DISTRACTOR = "The number printed on the {thing} is: {value}."
NEEDLE = "One of the special magic {values} for {key} is: {value}."
SINGLE_TEMPLATE = (
    "A special magic {value} is hidden within the following text. Make sure to memorize it. I will quiz "
    "you about the {value} afterwards.\n{context}\nWhat is the special magic {value} for {query} mentioned "
    "in the provided text? The special magic {value} for {query} mentioned in the provided text is"
)
MULTI_TEMPLATE = (
    "Some special magic {value}s are hidden within the following text. Make sure to memorize it. I will quiz "
    "you about the {value}s afterwards.\n{context}\nWhat are all the special magic {value}s for {query} "
    "mentioned in the provided text? The special magic {value}s for {query} mentioned in the provided "
    "text are"
)
DEPTHS = tuple(round(100 * step / 39) for step in range(40))
"""Needle depths in essays, in percent."""

_SENTENCE_END = re.compile(r"[.!?][\"')\]]*$")
_SENTENCE_START = re.compile(r"[\"'(\[]*[A-Z0-9]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Haystack, needles and queries of a task."""

    haystack: str
    """``noise``: one repeated line; ``essay``: essays; ``needles``: distractor needles."""
    key: str = "word"
    value: str = "number"
    keys: int = 1
    values: int = 1
    """Per key."""
    queries: int = 1
    """Number of queried keys."""
    distractors: int = 0
    """Sentences that state other values in other words than a needle."""
    half: int | None = None
    """Haystacks are excerpts of this half (0 or 1) of what RULER's haystacks do not reach of the essays."""


TASKS = {
    "niah_single_1": Task(haystack="noise"),
    "niah_single_2": Task(haystack="essay"),
    "niah_single_3": Task(haystack="essay", value="uuid"),
    "niah_multikey_1": Task(haystack="essay", keys=4),
    "niah_multikey_2": Task(haystack="needles"),
    "niah_multikey_3": Task(haystack="needles", key="uuid", value="uuid"),
    "niah_multivalue": Task(haystack="essay", values=4),
    "niah_multiquery": Task(haystack="essay", keys=4, queries=4),
}
CHOICE_TASKS = {
    "needle_single": Task(haystack="essay", key="action", distractors=3, half=0),
    "needle_single_heldout": Task(haystack="essay", key="action", distractors=3, half=1),
    "needle_multikey": Task(haystack="essay", key="action", keys=4, half=0),
    "needle_multikey_heldout": Task(haystack="essay", key="action", keys=4, half=1),
}
"""Tasks whose rows have values to choose from."""
CHOICE_TOKENS_TO_GENERATE = 32
NUM_OUTSIDE = 3
"""Values of a choice that are not in the text."""
UNUSED_FROM = 16_000
"""Words of the essays before the halves: more than a haystack of RULER's tasks has at 16,384 tokens."""


def sentence_ends(words: Sequence[str]) -> list[int]:
    """Number of words up to the end of each sentence, where the first word follows the last one."""
    after = [*words[1:], words[0]]
    return [
        number
        for number, (word, following) in enumerate(zip(words, after, strict=True), 1)
        if _SENTENCE_END.search(word) and _SENTENCE_START.match(following)
    ]


class Essays:
    """Words and sentence ends of the essays, repeated from the start when they run out."""

    def __init__(self, words: list[str]) -> None:
        self._words = words

    @classmethod
    def of_rows(cls, rows: list[dict[str, Any]]) -> "Essays":
        """The words of the rows' texts. Raises DataError for rows without text."""
        words = " ".join(str(row.get("text", "")) for row in rows).split()
        if not words:
            raise DataError("the essays of RULER's haystack hold no text (column 'text')")
        return cls(words)

    @cached_property
    def halves(self) -> "tuple[Essays, Essays]":
        """The two halves of the words that haystacks of RULER's tasks do not reach.

        Raises:
            DataError: there are no such words.
        """
        unused = self._words[UNUSED_FROM:]
        if len(unused) < 2:
            raise DataError(
                f"the essays hold {len(self._words):,} words; haystacks of these tasks begin after the first "
                f"{UNUSED_FROM:,}"
            )
        middle = len(unused) // 2
        return Essays(unused[:middle]), Essays(unused[middle:])

    def excerpt(self, rng: random.Random) -> "Essays":
        """The words from the beginning of a random sentence on, and then those before it."""
        place = bisect_right(self._ends, rng.randrange(len(self._words)))
        start = self._ends[place - 1] if place else 0
        found = Essays(self._words[start:] + self._words[:start])
        rotated = [end - start for end in (*self._ends[place:], *self._ends[:place])]
        found._ends = [end if end > 0 else end + len(self._words) for end in rotated]
        return found

    @cached_property
    def _ends(self) -> list[int]:
        """Number of words up to the end of each sentence."""
        return sentence_ends(self._words)

    def words(self, number: int) -> list[str]:
        """The first `number` words."""
        return list(islice(cycle(self._words), number))

    def ends(self, number: int) -> list[int]:
        """Sentence ends within the first `number` words; a truncated last sentence ends with the text."""
        rounds, rest = divmod(number, len(self._words))
        found = [turn * len(self._words) + end for turn in range(rounds) for end in self._ends]
        found += [rounds * len(self._words) + end for end in self._ends[: bisect_right(self._ends, rest)]]
        return found if found and found[-1] == number else [*found, number]


class Sampled:
    """Random parts of one document, independent of the amount of filler."""

    def __init__(self, task: Task, seed: str, essays: Essays | None) -> None:
        rng = random.Random(seed)
        self._task = task
        if essays is not None and task.half is not None:
            essays = essays.halves[task.half].excerpt(random.Random(f"{seed} excerpt"))
        self._essays = essays
        keys = _draw_distinct(rng, task.key, task.keys, task.half)
        number = task.keys * task.values
        extra = task.distractors + (NUM_OUTSIDE if task.half is not None else 0)
        values = _draw_distinct(rng, task.value, number + extra, task.half)
        stated, outside = values[: number + task.distractors], values[number + task.distractors :]
        per_key = {key: values[at * task.values :][: task.values] for at, key in enumerate(keys)}
        self.needles = [self._needle(key, value) for key in keys for value in per_key[key]]
        things = _draw_distinct(rng, "word", task.distractors)
        self.needles += [
            DISTRACTOR.format(thing=thing.replace("-", " "), value=value)
            for thing, value in zip(things, values[number:], strict=False)
        ]
        rng.shuffle(self.needles)
        queried = rng.sample(keys, task.queries)
        self.query = ", ".join(queried[:-1]) + ", and " + queried[-1] if len(queried) > 1 else queried[0]
        self.answers = [value for key in queried for value in per_key[key]]
        self.choices: dict[str, Any] = (
            {"inside": rng.sample(stated, len(stated)), "outside": [*self.answers, *outside], "keys": keys}
            if task.half is not None
            else {}
        )
        self.depths = sorted(rng.sample(DEPTHS, len(self.needles)))
        if task.half is not None:
            queried_needle = self._needle(queried[0], self.answers[0])
            self.choices["depth"] = self.depths[self.needles.index(queried_needle)]
        self._depth = rng.random()
        self._rng = random.Random(f"{seed} filler")
        self._lines: list[str] = []

    def _needle(self, key: str, value: str) -> str:
        return NEEDLE.format(values=f"{self._task.value}s", key=key, value=value)

    def position(self, units: int) -> int:
        """Number of filler lines before the needle."""
        return int(self._depth * units)

    def _filler(self, units: int) -> list[str]:
        if self._task.haystack == "noise":
            return [FILLER] * units
        while len(self._lines) < units:
            self._lines.append(
                self._needle(_draw_value(self._rng, self._task.key), _draw_value(self._rng, self._task.value))
            )
        return self._lines[:units]

    def _context(self, units: int) -> str:
        if self._essays is None:
            lines = self._filler(units)
            lines.insert(self.position(units), self.needles[0])
            return "\n".join(lines)
        return " ".join(self._insert_needles(self._essays, units))

    def _insert_needles(self, essays: Essays, units: int) -> list[str]:
        text, ends = essays.words(units), [0, *essays.ends(units)]
        # From the last place on, an insertion moves no other.
        for depth, needle in reversed(list(zip(self.depths, self.needles, strict=True))):
            place = ends[(len(ends) - 1) * depth // 100]
            text.insert(place, needle)
        return text

    def prompt(self, units: int) -> str:
        """The prompt with `units` of filler: lines, or words of essays."""
        template = SINGLE_TEMPLATE if len(self.answers) == 1 else MULTI_TEMPLATE
        text = template.format(value=self._task.value, context=self._context(units), query=self.query)
        # A colon, as in the needles: models that write one first are right, but not by their first token.
        return text if self._task.half is None else f"{text}:"


def draw(
    task: str, seed: str, context: int, count_tokens: CountTokens, essays: Essays | None
) -> dict[str, Any]:
    """Draw one document; {} if the context is too short.

    Returns:
        A row {"prompt", "answers", "units"}, with "depths" in percent of the sentences for essays, and
        otherwise "position", the number of lines before the needle. `CHOICE_TASKS` add the answer among
        values "inside" and "outside" the text, all "keys", and the "depth" of the queried needle.
    """
    drawn = Sampled((TASKS | CHOICE_TASKS)[task], seed, essays)
    reserved = CHOICE_TOKENS_TO_GENERATE if task in CHOICE_TASKS else TOKENS_TO_GENERATE
    units = fit_to_length(drawn.prompt, count_tokens, context - reserved, min_units=1, max_units=None)
    if units < 0:
        return {}
    row = {"prompt": drawn.prompt(units), "answers": drawn.answers, "units": units, **drawn.choices}
    return row | ({"depths": drawn.depths} if essays is not None else {"position": drawn.position(units)})


def _draw_distinct(rng: random.Random, kind: str, number: int, half: int | None = None) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < number:
        found[_draw_value(rng, kind, half)] = None
    return list(found)


def _draw_value(rng: random.Random, kind: str, half: int | None = None) -> str:
    """Draw a key or value. Those of two halves are disjoint: other nouns, and even or odd numbers."""
    if kind == "number":
        drawn = rng.randint(1_000_000, 9_999_999)
        return str(drawn if half is None else drawn // 2 * 2 + half)
    if kind == "uuid":
        return str(uuid.UUID(int=rng.getrandbits(128), version=4))
    if kind == "action":
        assert half is not None
        return f"{rng.choice(words('verb'))}-{rng.choice(words('noun')[half::2])}"
    return f"{rng.choice(words('adjective'))}-{rng.choice(words('noun'))}"
