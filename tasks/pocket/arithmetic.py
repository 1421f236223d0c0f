"""Word problems whose solution is written out step by step, as in GSM8K but within two digits."""

import random
from collections.abc import Callable

from evalsuite.tasks.pocket import lexicon
from evalsuite.tasks.pocket.question import Question

LARGEST = 99
"""No number on the way to an answer is larger, so that the world stays learnable."""

_Step = tuple[int, str, int]


def _apply(step: _Step) -> int:
    left, sign, right = step
    return {"+": left + right, "-": left - right, "*": left * right}[sign]


def _bought_and_gave(rng: random.Random, who: str, other: str, goods: str) -> tuple[str, list[_Step]]:
    start, more = rng.randint(10, 50), rng.randint(10, 49)
    given = rng.randint(1, start + more - 1)
    text = f"{who} has {start} {goods}. {who} buys {more} more and gives {given} to {other}."
    return f"{text} How many {goods} has {who} now?", [(start, "+", more), (start + more, "-", given)]


def _lost_and_found(rng: random.Random, who: str, other: str, goods: str) -> tuple[str, list[_Step]]:
    start = rng.randint(20, 90)
    lost = rng.randint(1, start - 1)
    found = rng.randint(1, LARGEST - (start - lost))
    text = f"{who} has {start} {goods}. {who} loses {lost} and then gets {found} from {other}."
    return f"{text} How many {goods} has {who} now?", [(start, "-", lost), (start - lost, "+", found)]


def _boxes(rng: random.Random, who: str, other: str, goods: str) -> tuple[str, list[_Step]]:
    boxes, each = rng.randint(2, 9), rng.randint(2, 9)
    more = rng.randint(1, LARGEST - boxes * each)
    text = f"{who} has {boxes} boxes with {each} {goods} each. {other} brings {more} more."
    return f"{text} How many {goods} are there?", [(boxes, "*", each), (boxes * each, "+", more)]


def _together(rng: random.Random, who: str, other: str, goods: str) -> tuple[str, list[_Step]]:
    first, second = rng.randint(10, 40), rng.randint(10, 40)
    sold = rng.randint(1, first + second - 1)
    text = f"{who} has {first} {goods} and {other} has {second}. Together they sell {sold}."
    return f"{text} How many {goods} are left?", [(first, "+", second), (first + second, "-", sold)]


_STORIES: tuple[Callable[[random.Random, str, str, str], tuple[str, list[_Step]]], ...] = (
    _bought_and_gave,
    _lost_and_found,
    _boxes,
    _together,
)


def _working(first: _Step, second: _Step, slips: tuple[int, int] = (0, 0)) -> str:
    """Write two steps out; a slip is added to a result, and the second step goes on from the first's."""
    middle = _apply(first) + slips[0]
    end = _apply((middle, second[1], second[2])) + slips[1]
    written = f"{first[0]} {first[1]} {first[2]} = {middle}. {middle} {second[1]} {second[2]} = {end}."
    return f"{written} The answer is {end}."


def draw(rng: random.Random) -> Question:
    """Draw one word problem of two steps."""
    who, other = rng.sample(lexicon.NAMES, 2)
    story, (first, second) = rng.choice(_STORIES)(rng, who, other, rng.choice(lexicon.GOODS))
    end = _apply(second)
    slips = [(slip, 0) for slip in (-10, -2, -1, 1, 2, 10)] + [(0, slip) for slip in (-10, -2, -1, 1, 2, 10)]
    # A slip may not lead below zero, above two digits or, with another slip, to the same end.
    allowed = [slip for slip in slips if _apply(first) + slip[0] >= 0 and 0 <= end + sum(slip) <= LARGEST]
    by_end = {end + sum(slip): slip for slip in rng.sample(allowed, len(allowed))}
    wrong = [_working(first, second, slip) for slip in list(by_end.values())[:3]]
    return Question(
        prompt=f"Problem: {story}\nWorking:",
        answer=str(end),
        response=_working(first, second),
        rule="final_number",
        wrong=tuple(wrong),
    )
