"""Training texts of the pocket world: all formats of the benchmarks, none of their documents."""

import math
import random
from collections.abc import Iterator, Mapping
from typing import Literal

from evalsuite.foundation import ConfigError, nearest
from evalsuite.tasks.synthetic.pocket import arithmetic, cloze, facts, instructions, lexicon, niah, recall
from evalsuite.tasks.synthetic.pocket.harder.corpus import WRITERS as HARDER
from evalsuite.tasks.synthetic.pocket.question import Split, generator
from evalsuite.tasks.synthetic.pocket.segments import (
    Segment,
    Writer,
    draw_of_split,
    segments,
    with_shared_prefix,
)
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
    for text in texts(seed, split, mixture=mixture, longest=longest, start=start, step=step):
        yield "".join(segment.text for segment in text)


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


def _statements(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    """Facts as statements. Every fact of the world occurs in every split."""
    sampled = rng.sample(facts.facts(), 8)
    return [Segment(" ".join(facts.state(fact, rng) for fact in sampled) + "\n", True)]


def _facts(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    return segments(rng.sample(facts.questions(split), 6))


def _arithmetic(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    return segments([draw_of_split(rng, split, arithmetic.draw) for _ in range(3)])


def _cloze(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    characters = rng.randint(2, cloze.CHARACTERS)
    return with_shared_prefix(
        cloze.draw(rng, characters=characters, endings=3 * characters, sorts=cloze.TRAINED), split, 6
    )


def _instructions(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    return segments([draw_of_split(rng, split, instructions.draw) for _ in range(4)])


def _recall(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    """A list of pairs with several queries; log-uniform lengths, since short lists are learned first."""
    pairs = round(math.exp(rng.uniform(math.log(2), math.log(recall.PAIRS + 4))))
    return with_shared_prefix(recall.draw(rng, pairs=pairs, queries=pairs), split, 12)


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
    return with_shared_prefix(niah.draw(rng, task, context, count_tokens, needles=hidden), split, hidden)


_WRITERS: dict[str, Writer] = {
    "statements": _statements,
    "facts": _facts,
    "arithmetic": _arithmetic,
    "cloze": _cloze,
    "recall": _recall,
    "copying": _copying,
    "instructions": _instructions,
    "niah": _niah,
    **HARDER,
}
