"""Verifiable instructions, as in IFEval: repeat, reverse, bracket, count, list."""

import random
from collections.abc import Callable
from typing import Any

from evalsuite.tasks.synthetic.pocket import lexicon
from evalsuite.tasks.synthetic.pocket.question import Question

CATEGORIES = {
    "animals": tuple(lexicon.PETS),
    "trades": tuple(lexicon.TRADES),
    "dishes": tuple(lexicon.DISHES),
    "rivers": tuple(lexicon.RIVERS),
    "towns": tuple(lexicon.TOWNS),
}

SEPARATORS = {"commas": ", ", "dashes": " - ", "semicolons": "; "}
BRACKETS = {"square brackets": ("[", "]"), "round brackets": ("(", ")"), "quotes": ('"', '"')}


def _repeat(rng: random.Random) -> tuple[str, str, dict[str, Any]]:
    times, named = rng.randint(2, 5), rng.choice(list(SEPARATORS))
    words = f"{rng.choice(lexicon.QUALITIES)} {rng.choice(lexicon.THINGS)}"
    text = f"Write {words} {lexicon.NUMBER_WORDS[times]} times with {named} between."
    return text, SEPARATORS[named].join([words] * times), {"kind": "text"}


def _reverse(rng: random.Random) -> tuple[str, str, dict[str, Any]]:
    words = rng.sample(lexicon.THINGS, rng.randint(3, 5))
    text = f"Write these words in reverse order: {' '.join(words)}."
    return text, " ".join(reversed(words)), {"kind": "text"}


def _bracket(rng: random.Random) -> tuple[str, str, dict[str, Any]]:
    named = rng.choice(list(BRACKETS))
    words = [rng.choice(lexicon.QUALITIES), rng.choice(lexicon.THINGS)]
    left, right = BRACKETS[named]
    place = rng.randrange(2)
    text = f"Write {' '.join(words)} with {named} around the {('first', 'second')[place]} word."
    words[place] = f"{left} {words[place]} {right}"
    return text, " ".join(words), {"kind": "text"}


def _count(rng: random.Random) -> tuple[str, str, dict[str, Any]]:
    start = rng.randint(1, 60)
    end = start + rng.randint(3, 6)
    word = rng.choice(lexicon.THINGS)
    numbers = " ".join(str(number) for number in range(start, end + 1))
    return f"Count from {start} to {end} and then write {word}.", f"{numbers} {word}", {"kind": "text"}


def _listing(rng: random.Random) -> tuple[str, str, dict[str, Any]]:
    category, named = rng.choice(list(CATEGORIES)), rng.choice(list(SEPARATORS))
    known, size = CATEGORIES[category], rng.randint(2, 4)
    start = rng.randrange(len(known) - size + 1)
    words = f"{rng.choice(lexicon.QUALITIES)} {rng.choice(lexicon.THINGS)}"
    text = (
        f"List {lexicon.NUMBER_WORDS[size]} {category} with {named} between, begin with {known[start]} "
        f"and end with {words}."
    )
    separator = SEPARATORS[named]
    form = {
        "kind": "list",
        "category": category,
        "size": size,
        "separator": separator,
        "begin": known[start],
        "end": words,
    }
    return text, f"{separator.join(known[start : start + size])} {words}", form


_FORMS: tuple[Callable[[random.Random], tuple[str, str, dict[str, Any]]], ...] = (
    _repeat,
    _reverse,
    _bracket,
    _count,
    _listing,
)


def draw(rng: random.Random) -> Question:
    """Draw one instruction; it has no wrong choices and is for generation only."""
    text, answer, form = rng.choice(_FORMS)(rng)
    prompt = f"Instruction: {text}\nAnswer:"
    return Question(prompt=prompt, answer=answer, response=answer, rule="format", form=form)


def follows(response: str, answer: str, form: dict[str, Any]) -> bool:
    """Return whether a response (stripped, one line) follows the instruction.

    Form ``text`` has one correct answer; form ``list`` accepts any distinct members of the category, in the
    right number, with the right separator, between the given beginning and end.
    """
    if form["kind"] == "text":
        return response == answer
    end = f" {form['end']}"
    members = response.removesuffix(end).split(form["separator"])
    known = CATEGORIES[form["category"]]
    return (
        response.endswith(end)
        and members[0] == form["begin"]
        and len(set(members)) == len(members) == form["size"]
        and all(member in known for member in members)
    )
