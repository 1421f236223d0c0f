"""Needles in a haystack: the eight retrieval tasks of RULER (Hsieh et al. 2024, arXiv 2404.06654, Table 5).

Template, needles, haystacks, depths and the 128 tokens kept free for an answer are RULER's (`niah.py`,
`constants.py`, `synthetic.yaml` at github.com/NVIDIA/RULER). What differs: every document is drawn from a
seed of its own; filler is added one unit at a time, where RULER adds 5 to 500; sentences end where a rule
below says, where RULER asks NLTK's punkt.
"""

import random
import re
import uuid
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evalsuite.foundation import DataError
from evalsuite.tasks.sized.fitting import CountTokens, fill
from evalsuite.tasks.sized.words import words

RESERVE = 128
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
NEEDLE = "One of the special magic {values} for {key} is: {value}."
ONE = (
    "A special magic {value} is hidden within the following text. Make sure to memorize it. I will quiz "
    "you about the {value} afterwards.\n{context}\nWhat is the special magic {value} for {query} mentioned "
    "in the provided text? The special magic {value} for {query} mentioned in the provided text is"
)
SEVERAL = (
    "Some special magic {value}s are hidden within the following text. Make sure to memorize it. I will quiz "
    "you about the {value}s afterwards.\n{context}\nWhat are all the special magic {value}s for {query} "
    "mentioned in the provided text? The special magic {value}s for {query} mentioned in the provided "
    "text are"
)
DEPTHS = tuple(round(100 * step / 39) for step in range(40))
"""Depths in percent that needles stand at in essays."""

_ENDS = re.compile(r"[.!?][\"')\]]*$")
_BEGINS = re.compile(r"[\"'(\[]*[A-Z0-9]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What is hidden, in what, and how much of it is asked for."""

    haystack: str
    """``noise``: one line again and again; ``essay``: essays; ``needles``: needles that nobody asks for."""
    key: str = "word"
    value: str = "number"
    keys: int = 1
    values: int = 1
    """Per key."""
    queries: int = 1
    """Keys that are asked for."""


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


class Essays:
    """The words of essays, and where their sentences end; they begin again when they are used up.

    Raises:
        DataError: rows without text.
    """

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._words = " ".join(str(row.get("text", "")) for row in rows).split()
        if not self._words:
            raise DataError("the essays of RULER's haystack hold no text (column 'text')")

    @cached_property
    def _ends(self) -> list[int]:
        """For each sentence, the number of words up to its end."""
        after = [*self._words[1:], self._words[0]]
        return [
            number
            for number, (word, following) in enumerate(zip(self._words, after, strict=True), 1)
            if _ENDS.search(word) and _BEGINS.match(following)
        ]

    def words(self, number: int) -> list[str]:
        """The first `number` words."""
        repeats = -(-number // len(self._words))
        return (self._words * repeats)[:number]

    def ends(self, number: int) -> list[int]:
        """Where the sentences of the first `number` words end; the last ends with the text, whole or not."""
        rounds, rest = divmod(number, len(self._words))
        found = [turn * len(self._words) + end for turn in range(rounds) for end in self._ends]
        found += [rounds * len(self._words) + end for end in self._ends[: bisect_right(self._ends, rest)]]
        return found if found and found[-1] == number else [*found, number]


class Draw:
    """One document before it has its length: everything that is random in it."""

    def __init__(self, task: Task, seed: str, essays: Essays | None) -> None:
        rng = random.Random(seed)
        self._task = task
        self._essays = essays
        keys = _distinct(rng, task.key, task.keys)
        values = _distinct(rng, task.value, task.keys * task.values)
        per_key = {key: values[at * task.values :][: task.values] for at, key in enumerate(keys)}
        self.needles = [self._needle(key, value) for key in keys for value in per_key[key]]
        rng.shuffle(self.needles)
        asked = rng.sample(keys, task.queries)
        self.query = ", ".join(asked[:-1]) + ", and " + asked[-1] if len(asked) > 1 else asked[0]
        self.answers = [value for key in asked for value in per_key[key]]
        self.depths = sorted(rng.sample(DEPTHS, len(self.needles)))
        self._place = rng.random()
        self._rng = random.Random(f"{seed} filler")
        self._lines: list[str] = []

    def _needle(self, key: str, value: str) -> str:
        return NEEDLE.format(values=f"{self._task.value}s", key=key, value=value)

    def position(self, units: int) -> int:
        """How many lines of filler stand before the needle."""
        return int(self._place * units)

    def _filler(self, units: int) -> list[str]:
        if self._task.haystack == "noise":
            return [FILLER] * units
        while len(self._lines) < units:
            self._lines.append(
                self._needle(_one(self._rng, self._task.key), _one(self._rng, self._task.value))
            )
        return self._lines[:units]

    def _context(self, units: int) -> str:
        if self._essays is None:
            lines = self._filler(units)
            lines.insert(self.position(units), self.needles[0])
            return "\n".join(lines)
        return " ".join(self._among(self._essays, units))

    def _among(self, essays: Essays, units: int) -> Iterator[str]:
        text, ends = essays.words(units), [0, *essays.ends(units)]
        before = 0
        for depth, needle in zip(self.depths, self.needles, strict=True):
            place = ends[(len(ends) - 1) * depth // 100]
            yield from text[before:place]
            yield needle
            before = place
        yield from text[before:]

    def prompt(self, units: int) -> str:
        """The prompt with this much filler: lines, or words of essays."""
        template = ONE if len(self.answers) == 1 else SEVERAL
        return template.format(value=self._task.value, context=self._context(units), query=self.query)


def draw(kind: str, seed: str, context: int, count: CountTokens, essays: Essays | None) -> dict[str, Any]:
    """Return one document, {} if the context does not hold it.

    Returns:
        A row {"prompt", "answers", "units"} and where the needles stand: "depths" in percent of the
        sentences, for essays, else "position", the lines before it.
    """
    drawn = Draw(TASKS[kind], seed, essays)
    units = fill(drawn.prompt, count, context - RESERVE, least=1, most=None)
    if units < 0:
        return {}
    row = {"prompt": drawn.prompt(units), "answers": drawn.answers, "units": units}
    return row | ({"depths": drawn.depths} if essays is not None else {"position": drawn.position(units)})


def _distinct(rng: random.Random, kind: str, number: int) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < number:
        found[_one(rng, kind)] = None
    return list(found)


def _one(rng: random.Random, kind: str) -> str:
    if kind == "number":
        return str(rng.randint(1_000_000, 9_999_999))
    if kind == "uuid":
        return str(uuid.UUID(int=rng.getrandbits(128), version=4))
    return f"{rng.choice(words('adjective'))}-{rng.choice(words('noun'))}"
