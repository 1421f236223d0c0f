"""Training texts of the pocket world: all formats of the benchmarks, none of their documents."""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from evalsuite.foundation import ConfigError, nearest
from evalsuite.tasks.synthetic.pocket import arithmetic, cloze, facts, instructions, lexicon, niah, recall
from evalsuite.tasks.synthetic.pocket.question import Question, Split, generator, split_of
from evalsuite.tasks.synthetic.pocket.tokenizer import count_tokens

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
"""Share of each kind among the training texts, by number of texts."""

MIN_HAYSTACK_TOKENS, MAX_HAYSTACK_TOKENS = 124, 1024


class Segment(NamedTuple):
    """A span of a training text; `answer` marks responses."""

    text: str
    answer: bool


def corpus(
    seed: int,
    split: CorpusSplit = "train",
    *,
    mixture: Mapping[str, float] = MIXTURE,
    longest: int = MAX_HAYSTACK_TOKENS,
    start: int = 0,
    step: int = 1,
) -> Iterator[str]:
    """Yield an endless stream of training texts; text i depends on (seed, split, i) and the settings only.

    `longest` bounds haystacks in tokens. `start` and `step` let several workers share one corpus.

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
    longest: int = MAX_HAYSTACK_TOKENS,
    start: int = 0,
    step: int = 1,
) -> Iterator[list[Segment]]:
    """Yield the texts of `corpus` as segments with marked answers."""
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


def _segments(questions: Sequence[Question]) -> list[Segment]:
    return [
        segment
        for question in questions
        for segment in (Segment(question.prompt, False), Segment(f" {question.response}\n", True))
    ]


def _drawn(rng: random.Random, split: Split, draw: Callable[[random.Random], Question]) -> Question:
    """Draw questions until one belongs to the split."""
    while True:
        question = draw(rng)
        if split_of(question.prompt, question.answer) == split:
            return question


def _statements(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    """Facts as statements. Every fact of the world occurs in every split."""
    sampled = rng.sample(facts.facts(), 8)
    return [Segment(" ".join(facts.state(fact, rng) for fact in sampled) + "\n", True)]


def _facts(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    return _segments(rng.sample(facts.questions(split), 6))


def _arithmetic(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    return _segments([_drawn(rng, split, arithmetic.draw) for _ in range(3)])


def _cloze(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    characters = rng.randint(2, cloze.CHARACTERS)
    return _with_shared_prefix(
        cloze.draw(rng, characters=characters, endings=3 * characters, sorts=cloze.TRAINED), split, 6
    )


def _instructions(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    return _segments([_drawn(rng, split, instructions.draw) for _ in range(4)])


def _recall(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    """A list of pairs with several queries; log-uniform lengths, since short lists are learned first."""
    pairs = round(math.exp(rng.uniform(math.log(2), math.log(recall.PAIRS + 4))))
    return _with_shared_prefix(recall.draw(rng, pairs=pairs, queries=pairs), split, 12)


def _copying(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    """Words and their repetition: the fastest way to learn induction heads."""
    words = rng.sample(lexicon.THINGS + lexicon.QUALITIES, rng.randint(4, 32))
    return [Segment(f"Words: {' '.join(words)}.\nAgain:", False), Segment(f" {' '.join(words)}.\n", True)]


def _niah(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    """One haystack with one to four needles, all of them queried."""
    task = rng.choice(list(niah.TASKS.values()))
    hidden = rng.choice((1, 1, 2, 3, 4))
    shortest = MIN_HAYSTACK_TOKENS + 36 * (hidden - 1)
    context = rng.randint(shortest, max(longest, shortest))
    return _with_shared_prefix(niah.draw(rng, task, context, count_tokens, needles=hidden), split, hidden)


def _with_shared_prefix(questions: list[Question], split: Split, limit: int) -> list[Segment]:
    """The shared prefix once, then up to `limit` questions that belong to the split."""
    owned = [question for question in questions if split_of(question.prompt, question.answer) == split][
        :limit
    ]
    if not owned:
        # No question belongs to the split; the shared prefix is still training text.
        return [Segment(questions[0].prompt.rsplit("\n", 1)[0] + "\n", False)]
    first, *others = owned
    tail = [Question(prompt=_last_line(q), answer=q.answer, response=q.response, rule=q.rule) for q in others]
    return _segments([first, *tail])


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
