"""Word problems with step-by-step solutions, as in GSM8K but within two digits."""

import random
from collections.abc import Callable

from evalsuite.tasks.synthetic.pocket import lexicon
from evalsuite.tasks.synthetic.pocket.question import Question

LARGEST = 99
"""Upper bound of every intermediate result, which keeps the task learnable for the pocket teacher."""

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


def _working(first: _Step, second: _Step, errors: tuple[int, int] = (0, 0)) -> str:
    """Format two steps; an error is added to its step's result, and step two continues from step one."""
    middle = _apply(first) + errors[0]
    end = _apply((middle, second[1], second[2])) + errors[1]
    steps = f"{first[0]} {first[1]} {first[2]} = {middle}. {middle} {second[1]} {second[2]} = {end}."
    return f"{steps} The answer is {end}."


def draw(rng: random.Random) -> Question:
    """Draw one two-step word problem."""
    who, other = rng.sample(lexicon.NAMES, 2)
    story, (first, second) = rng.choice(_STORIES)(rng, who, other, rng.choice(lexicon.GOODS))
    end = _apply(second)
    errors = [(error, 0) for error in (-10, -2, -1, 1, 2, 10)] + [
        (0, error) for error in (-10, -2, -1, 1, 2, 10)
    ]
    # An error must not lead below zero, above two digits, or to the same end as another error.
    allowed = [
        error for error in errors if _apply(first) + error[0] >= 0 and 0 <= end + sum(error) <= LARGEST
    ]
    by_end = {end + sum(error): error for error in rng.sample(allowed, len(allowed))}
    wrong = [_working(first, second, error) for error in list(by_end.values())[:3]]
    return Question(
        prompt=f"Problem: {story}\nWorking:",
        answer=str(end),
        response=_working(first, second),
        rule="final_number",
        wrong=tuple(wrong),
    )
