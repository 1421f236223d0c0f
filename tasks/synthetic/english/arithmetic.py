"""One step of arithmetic on numbers of up to two digits, bare or as a short story."""

from random import Random

from evalsuite.tasks.synthetic.pocket import lexicon
from evalsuite.tasks.synthetic.pocket.question import Question

NUM_WRONG = 3

_BARE = {
    "+": ("What is {a} + {b}?", "{a} plus {b} is what?", "Add {a} and {b}."),
    "-": ("What is {a} - {b}?", "{a} minus {b} is what?", "Subtract {b} from {a}."),
    "*": ("What is {a} * {b}?", "{a} times {b} is what?", "Multiply {a} by {b}."),
}
_STORIES = {
    "+": (
        "{who} has {a} {goods} and buys {b} more. How many {goods} does {who} have now?",
        "{who} finds {a} {goods} and {other} finds {b} {goods}. How many {goods} do they have together?",
    ),
    "-": (
        "{who} has {a} {goods} and gives {b} of them to {other}. How many {goods} does {who} have left?",
        "There are {a} {goods} in a box. {who} takes out {b}. How many {goods} are left in the box?",
    ),
    "*": (
        "{who} has {a} boxes with {b} {goods} in each box. How many {goods} does {who} have?",
        "{who} buys {b} {goods} every day for {a} days. How many {goods} does {who} buy in all?",
    ),
}


def draw(rng: Random) -> Question:
    """Draw one question; wrong choices are near the right number or differ from it by ten."""
    sign = rng.choice("+-*")
    if sign == "*":
        a, b = rng.randint(2, 12), rng.randint(2, 12)
    else:
        a, b = sorted((rng.randint(2, 99), rng.randint(2, 99)), reverse=True)
        if sign == "+" and rng.random() < 0.5:
            a, b = b, a
    result = {"+": a + b, "-": a - b, "*": a * b}[sign]
    who, other = rng.sample(lexicon.NAMES, 2)
    templates = (_BARE if rng.random() < 0.5 else _STORIES)[sign]
    text = rng.choice(templates).format(a=a, b=b, who=who, other=other, goods=rng.choice(lexicon.GOODS))
    near = [result + error for error in (-10, -2, -1, 1, 2, 10) if result + error >= 0]
    return Question(
        prompt=f"Question: {text}\nAnswer with a number.\nAnswer:",
        answer=str(result),
        response=str(result),
        rule="exact",
        wrong=tuple(map(str, rng.sample(near, NUM_WRONG))),
    )
