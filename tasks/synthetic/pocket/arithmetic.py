"""Word problems with step-by-step solutions, as in GSM8K but within two digits."""

import random
from collections.abc import Callable, Sequence

from evalsuite.tasks.synthetic.pocket import lexicon
from evalsuite.tasks.synthetic.pocket.question import Question

LARGEST = 99
"""Upper bound of every intermediate result, which keeps the task learnable for the pocket teacher."""

Step = tuple[int, str, int]
"""Left operand, sign (+, - or *), right operand."""


def apply(step: Step) -> int:
    """Return the result of one step."""
    left, sign, right = step
    return {"+": left + right, "-": left - right, "*": left * right}[sign]


def _bought_and_gave(rng: random.Random, who: str, other: str, goods: str) -> tuple[str, list[Step]]:
    start, more = rng.randint(10, 50), rng.randint(10, 49)
    given = rng.randint(1, start + more - 1)
    text = f"{who} has {start} {goods}. {who} buys {more} more and gives {given} to {other}."
    return f"{text} How many {goods} has {who} now?", [(start, "+", more), (start + more, "-", given)]


def _lost_and_found(rng: random.Random, who: str, other: str, goods: str) -> tuple[str, list[Step]]:
    start = rng.randint(20, 90)
    lost = rng.randint(1, start - 1)
    found = rng.randint(1, LARGEST - (start - lost))
    text = f"{who} has {start} {goods}. {who} loses {lost} and then gets {found} from {other}."
    return f"{text} How many {goods} has {who} now?", [(start, "-", lost), (start - lost, "+", found)]


def _boxes(rng: random.Random, who: str, other: str, goods: str) -> tuple[str, list[Step]]:
    boxes, each = rng.randint(2, 9), rng.randint(2, 9)
    more = rng.randint(1, LARGEST - boxes * each)
    text = f"{who} has {boxes} boxes with {each} {goods} each. {other} brings {more} more."
    return f"{text} How many {goods} are there?", [(boxes, "*", each), (boxes * each, "+", more)]


def _together(rng: random.Random, who: str, other: str, goods: str) -> tuple[str, list[Step]]:
    first, second = rng.randint(10, 40), rng.randint(10, 40)
    sold = rng.randint(1, first + second - 1)
    text = f"{who} has {first} {goods} and {other} has {second}. Together they sell {sold}."
    return f"{text} How many {goods} are left?", [(first, "+", second), (first + second, "-", sold)]


STORIES: tuple[Callable[[random.Random, str, str, str], tuple[str, list[Step]]], ...] = (
    _bought_and_gave,
    _lost_and_found,
    _boxes,
    _together,
)


def working(steps: Sequence[Step], errors: Sequence[int]) -> tuple[str, int]:
    """Return the solution as text, and its result.

    Args:
        errors: added to the result of each step; every step after the first continues from the one before.
    """
    text, value = [], steps[0][0]
    for (_, sign, right), error in zip(steps, errors, strict=True):
        result = apply((value, sign, right)) + error
        text.append(f"{value} {sign} {right} = {result}.")
        value = result
    return f"{' '.join(text)} The answer is {value}.", value


def draw(rng: random.Random) -> Question:
    """Draw one two-step word problem."""
    who, other = rng.sample(lexicon.NAMES, 2)
    story, (first, second) = rng.choice(STORIES)(rng, who, other, rng.choice(lexicon.GOODS))
    return problem(rng, story, (first, second))


def problem(rng: random.Random, story: str, steps: Sequence[Step]) -> Question:
    """Return the question about a story; each wrong solution has an error in one step."""
    response, end = working(steps, [0] * len(steps))
    errors = [
        [error if step == place else 0 for step in range(len(steps))]
        for place in range(len(steps))
        for error in (-10, -2, -1, 1, 2, 10)
    ]
    # An error must not lead below zero, above two digits, or to the same end as another error.
    allowed = [
        error
        for error in errors
        if all(apply(step) + sum(error[: place + 1]) >= 0 for place, step in enumerate(steps[:-1]))
        and 0 <= end + sum(error) <= LARGEST
    ]
    by_end = {end + sum(error): error for error in rng.sample(allowed, len(allowed))}
    wrong = [working(steps, error)[0] for error in list(by_end.values())[:3]]
    return Question(
        prompt=f"Problem: {story}\nWorking:",
        answer=str(end),
        response=response,
        rule="final_number",
        wrong=tuple(wrong),
    )
