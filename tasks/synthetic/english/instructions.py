"""Instructions on a short list of words, whose result can be checked letter by letter."""

import json
from collections.abc import Callable
from random import Random

from evalsuite.tasks.synthetic.pocket.question import Question

NUM_WRONG = 3
_NOUNS = (
    "apple arrow autumn basket beach bell bird blanket boat bottle branch bread bridge brush bucket "
    "butter button camera candle carpet castle chair cherry circle cloud coat coffee corner cotton crown "
    "cup desk diamond dinner doctor door dragon dream eagle engine evening farmer feather fence field "
    "finger fire fish flower forest fruit garden gate glass glove grass guitar hammer harbor hill honey "
    "horse hotel island jacket jungle kettle key king kitchen ladder lake lamp leaf lemon letter library "
    "lion market meadow melon metal milk mirror money monkey moon morning mountain music needle nest "
    "night ocean office onion orange oven paint palace paper parcel pencil pepper piano picture pillow "
    "pilot planet plate pocket pond potato prince queen rabbit rain ribbon river road robot roof rope "
    "rose salt sand scarf school shadow sheep shell ship shoe silver singer sister sky snow soap soldier "
    "spoon spring square star stone storm street sugar summer table tailor teacher temple tiger tower "
    "train tree tunnel valley village violin voice wagon wall water whale wheel window winter wolf wool "
    "yard"
)
WORDS = _NOUNS.split()
"""Common nouns."""

OPERATIONS: dict[str, Callable[[list[str]], str]] = {
    "Write the words in alphabetical order, separated by commas.": lambda words: ", ".join(sorted(words)),
    "Write the words in reverse order, separated by commas.": lambda words: ", ".join(words[::-1]),
    "Write the words in capital letters, separated by commas.": lambda words: ", ".join(words).upper(),
    "Write the words separated by semicolons.": lambda words: "; ".join(words),
    "Write the words as a list, one on each line, each after a dash.": lambda words: "\n".join(
        f"- {word}" for word in words
    ),
    "Write the words as a numbered list, one on each line.": lambda words: "\n".join(
        f"{number}. {word}" for number, word in enumerate(words, 1)
    ),
    "Write the words as a JSON list.": json.dumps,
    "Write every word in quotation marks, separated by commas.": lambda words: ", ".join(
        f'"{word}"' for word in words
    ),
    "Write the first letter of every word, separated by spaces.": lambda words: " ".join(
        word[0] for word in words
    ),
    "Write only the first word.": lambda words: words[0],
    "Write only the last word.": lambda words: words[-1],
    "Write only the longest word.": lambda words: max(words, key=len),
    "Write the first word three times, separated by commas.": lambda words: ", ".join([words[0]] * 3),
    "Write the words joined by hyphens.": lambda words: "-".join(words),
    "Write how many words there are, as a number.": lambda words: str(len(words)),
    "Write the words in brackets, separated by spaces.": lambda words: f"[{' '.join(words)}]",
}
"""Instruction → what follows it."""


def draw(rng: Random) -> Question:
    """Draw one instruction; wrong choices follow another instruction on the same words."""
    while True:
        words = rng.sample(WORDS, rng.randint(3, 5))
        lengths = sorted(map(len, words))
        if lengths[-1] > lengths[-2] and words != sorted(words):
            break
    instruction = rng.choice(list(OPERATIONS))
    answer = OPERATIONS[instruction](words)
    others = {operation(words) for operation in OPERATIONS.values()} - {answer}
    return Question(
        prompt=f"Instruction: {instruction}\nWords: {', '.join(words)}\nAnswer:",
        answer=answer,
        response=answer,
        rule="exact",
        wrong=tuple(rng.sample(sorted(others), NUM_WRONG)),
    )
