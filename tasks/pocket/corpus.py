"""Training texts of the pocket world: all formats of the benchmarks, none of their documents."""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from evalsuite.foundation import ConfigError, nearest
from evalsuite.tasks.pocket import arithmetic, cloze, facts, instructions, lexicon, needles, recall, world
from evalsuite.tasks.pocket.drawing import Split, generator, split_of
from evalsuite.tasks.pocket.question import Question
from evalsuite.tasks.pocket.vocabulary import count_tokens

CorpusSplit = Literal["train", "validation"]

MIXTURE: Mapping[str, float] = {
    "statements": 0.12,
    "facts": 0.12,
    "arithmetic": 0.2,
    "cloze": 0.12,
    "recall": 0.12,
    "copying": 0.05,
    "instructions": 0.12,
    "niah": 0.2,
}
"""Share of each kind among the training texts (by number, not by tokens)."""

SHORTEST_HAYSTACK, LONGEST_HAYSTACK = 124, 1024


class Segment(NamedTuple):
    """A part of a training text; `answer` marks what a model has to come to."""

    text: str
    answer: bool


def corpus(
    seed: int,
    split: CorpusSplit = "train",
    *,
    mixture: Mapping[str, float] = MIXTURE,
    longest: int = LONGEST_HAYSTACK,
    start: int = 0,
    step: int = 1,
) -> Iterator[str]:
    """Yield training texts without end; text number i depends on (seed, split, i) and the settings alone.

    `longest` bounds the haystacks in tokens. `start` and `step` let several workers share one corpus.

    Raises:
        ConfigError: an unknown split or kind, or haystacks too short for a question.
    """
    for segments in texts(seed, split, mixture=mixture, longest=longest, start=start, step=step):
        yield "".join(segment.text for segment in segments)


def texts(
    seed: int,
    split: CorpusSplit = "train",
    *,
    mixture: Mapping[str, float] = MIXTURE,
    longest: int = LONGEST_HAYSTACK,
    start: int = 0,
    step: int = 1,
) -> Iterator[list[Segment]]:
    """Yield the texts of `corpus` with their answers marked."""
    if split not in ("train", "validation"):
        raise ConfigError(f"pocket corpus: unknown split '{split}'{nearest(split, ('train', 'validation'))}")
    for kind in mixture:
        if kind not in _WRITERS:
            raise ConfigError(f"pocket corpus: unknown kind '{kind}'{nearest(kind, _WRITERS)}")
    kinds, weights = list(mixture), list(mixture.values())
    number = start
    while True:
        rng = generator("corpus", seed, split, number)
        yield _WRITERS[rng.choices(kinds, weights)[0]](rng, split, longest)
        number += step


def _asked(questions: Sequence[Question]) -> list[Segment]:
    return [
        segment
        for question in questions
        for segment in (Segment(question.prompt, False), Segment(f" {question.response}\n", True))
    ]


def _drawn(rng: random.Random, split: Split, draw: Callable[[random.Random], Question]) -> Question:
    """Draw until the question belongs to the split."""
    while True:
        question = draw(rng)
        if split_of(question.prompt, question.answer) == split:
            return question


def _statements(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    """Facts told, not asked. Every fact of the world occurs in every split."""
    told = rng.sample(world.facts(), 8)
    return [Segment(" ".join(facts.state(fact, rng) for fact in told) + "\n", True)]


def _facts(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    return _asked(rng.sample(facts.questions(split), 6))


def _arithmetic(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    return _asked([_drawn(rng, split, arithmetic.draw) for _ in range(3)])


def _cloze(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    characters = rng.randint(2, cloze.CHARACTERS)
    return _shared(cloze.draw(rng, characters=characters, endings=3 * characters, sorts=cloze.TOLD), split, 6)


def _instructions(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    return _asked([_drawn(rng, split, instructions.draw) for _ in range(4)])


def _recall(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    """A list of pairs and several of its keys; short lists are as frequent as long ones, and learnt first."""
    pairs = round(math.exp(rng.uniform(math.log(2), math.log(recall.PAIRS + 4))))
    return _shared(recall.draw(rng, pairs=pairs, queries=pairs), split, 12)


def _copying(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    """Words and the same words again: what teaches a model soonest to look back at what came before."""
    words = rng.sample(lexicon.THINGS + lexicon.QUALITIES, rng.randint(4, 32))
    return [Segment(f"Words: {' '.join(words)}.\nAgain:", False), Segment(f" {' '.join(words)}.\n", True)]


def _niah(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    """One haystack with one to four needles, and all of them asked for."""
    style = rng.choice(list(needles.STYLES.values()))
    hidden = rng.choice((1, 1, 2, 3, 4))
    shortest = SHORTEST_HAYSTACK + 36 * (hidden - 1)
    context = rng.randint(shortest, max(longest, shortest))
    return _shared(needles.draw(rng, style, context, count_tokens, needles=hidden), split, hidden)


def _shared(questions: list[Question], split: Split, most: int) -> list[Segment]:
    """Write what the questions share once, then those that belong to the split."""
    kept = [question for question in questions if split_of(question.prompt, question.answer) == split][:most]
    if not kept:
        # None of them may be asked; the text is still text to learn from.
        return [Segment(questions[0].prompt.rsplit("\n", 1)[0] + "\n", False)]
    first, *others = kept
    tail = [Question(prompt=_last_line(q), answer=q.answer, response=q.response, rule=q.rule) for q in others]
    return _asked([first, *tail])


def _last_line(question: Question) -> str:
    return question.prompt.rsplit("\n", 1)[1]


_WRITERS: dict[str, Callable[[random.Random, Split, int], list[Segment]]] = {
    "statements": _statements,
    "facts": _facts,
    "arithmetic": _arithmetic,
    "cloze": _cloze,
    "recall": _recall,
    "copying": _copying,
    "instructions": _instructions,
    "niah": _niah,
}
