"""Training texts of the harder tasks: questions, and the prose that stands for pretraining text."""

import math
import random

from evalsuite.tasks.synthetic.pocket import lexicon, niah
from evalsuite.tasks.synthetic.pocket.harder import (
    choice,
    constraints,
    needles,
    passage,
    recite,
    three_steps,
    two_hop,
)
from evalsuite.tasks.synthetic.pocket.question import Split
from evalsuite.tasks.synthetic.pocket.segments import (
    Segment,
    Writer,
    draw_of_split,
    segments,
    with_shared_prefix,
)
from evalsuite.tasks.synthetic.pocket.tokenizer import count_tokens

MIN_HAYSTACK_TOKENS = 200
EASIEST = 2
"""Fewest people and options of training texts. Without easy cases a teacher of ten million parameters is
at chance in `choice` and `two_hop` after 210M tokens; with them two still are in `choice` and one of the
two in `two_hop` (results, pocket-10m-teacher)."""
RESTATED = 0.3
"""Share of the sentences of prose that repeat an earlier one, as real text returns to its subjects."""


def _log_uniform(rng: random.Random, low: int, high: int) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _two_hop(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    people = rng.randint(EASIEST, two_hop.PEOPLE)
    questions = two_hop.draw(rng, people=people, questions=people)
    return with_shared_prefix(questions, split, 3, prefix=_first_line(questions[0].prompt))


def _passage(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    people = rng.randint(3, passage.PEOPLE)
    questions = passage.draw(rng, people=people, questions=2 * people)
    return with_shared_prefix(questions, split, 5, prefix=_first_line(questions[0].prompt))


def _choice(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    people, options = rng.randint(EASIEST, passage.PEOPLE), rng.randint(EASIEST, len(choice.NAMES))
    questions = choice.draw(rng, people=people, questions=2 * people, options=options)
    return with_shared_prefix(questions, split, 4, prefix=_first_line(questions[0].prompt))


def _first_line(prompt: str) -> str:
    return prompt.partition("\n")[0] + "\n"


def _three_steps(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    return segments([draw_of_split(rng, split, three_steps.draw) for _ in range(3)])


def _constraints(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    return segments([draw_of_split(rng, split, constraints.draw) for _ in range(3)])


def _recite(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    words = _log_uniform(rng, recite.SHORTEST, recite.WORDS + 4)
    return segments([draw_of_split(rng, split, lambda each: recite.draw(each, words))])


def _needles(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    context = _log_uniform(rng, MIN_HAYSTACK_TOKENS, max(longest, MIN_HAYSTACK_TOKENS))
    return with_shared_prefix(needles.draw(rng, context, count_tokens), split, needles.NEEDLES)


def _prose(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    """Sentences, some of which repeat an earlier one, or a passage; all of it counts in the loss."""
    told: list[str] = []
    for _ in range(rng.randint(8, 24)):
        if told and rng.random() < RESTATED:
            told.append(rng.choice(told))
        else:
            told.append(niah.sentence(rng))
    if rng.random() < 0.5:
        told.insert(rng.randrange(len(told)), passage.draw_passage(rng, rng.randint(2, passage.PEOPLE)).text)
    return [Segment(" ".join(told) + "\n", True)]


def _word_lists(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    """Lists that return in the same order, as text."""
    words = rng.sample(lexicon.THINGS + lexicon.QUALITIES, rng.randint(4, 24))
    listed = ", ".join(words)
    return [Segment(f"Words: {listed}. {niah.sentence(rng)}\nWords: {listed}.\n", True)]


_QUESTIONS: dict[str, Writer] = {
    "two_hop": _two_hop,
    "three_steps": _three_steps,
    "constraints": _constraints,
    "passage": _passage,
    "choice": _choice,
    "recite": _recite,
    "needles": _needles,
}


def _single(rng: random.Random, split: Split, longest: int) -> list[Segment]:
    """One question of any kind, so that a teacher's response can take the place of the given one."""
    while True:
        text = rng.choice(tuple(_QUESTIONS.values()))(rng, split, longest)
        if len(text) > 1:
            return text[:2]


WRITERS: dict[str, Writer] = {
    **_QUESTIONS,
    "single": _single,
    "prose": _prose,
    "word_lists": _word_lists,
}
"""Kind of text → writer; kinds of the corpus' mixture."""
