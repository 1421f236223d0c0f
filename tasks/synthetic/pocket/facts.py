"""The facts of the pocket world (homes, trades, pets, dishes, rivers, products), and questions about them."""

import random
from dataclasses import dataclass
from functools import cache

from evalsuite.tasks.synthetic.pocket import lexicon
from evalsuite.tasks.synthetic.pocket.question import Question, Split, generator, split_of

WORLD_SEED = 2504
"""Fixed, since the facts are in the weights of the pocket teacher."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation between subjects and values, with wordings of its questions and statements."""

    name: str
    subjects: tuple[str, ...]
    values: tuple[str, ...]
    questions: tuple[str, ...]
    statements: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """A subject, a relation and its value."""

    subject: str
    relation: Relation
    value: str


PEOPLE = tuple(lexicon.NAMES)
TOWNS = tuple(lexicon.TOWNS)

RELATIONS = (
    Relation(
        "home",
        PEOPLE,
        TOWNS,
        (
            "Where does {x} live?",
            "In which town is {x} at home?",
            "What is the home town of {x}?",
            "Which town does {x} call home?",
            "Where is the house of {x}?",
        ),
        (
            "{x} lives in {y}.",
            "The house of {x} is in {y}.",
            "{y} is the home of {x}.",
            "{x} came home to {y}.",
            "In {y} everybody knows {x}.",
            "{x} has a house in {y}.",
        ),
    ),
    Relation(
        "trade",
        PEOPLE,
        tuple(lexicon.TRADES),
        (
            "What is the trade of {x}?",
            "What does {x} work as?",
            "Which job does {x} have?",
            "What is {x} by trade?",
            "How does {x} earn a living?",
        ),
        (
            "{x} works as a {y}.",
            "{x} is a {y}.",
            "The trade of {x} is {y}.",
            "{x} is a {y} by trade.",
            "{x} earns a living as a {y}.",
            "{x} has a job as a {y}.",
        ),
    ),
    Relation(
        "pet",
        PEOPLE,
        tuple(lexicon.PETS),
        (
            "Which animal does {x} keep?",
            "What pet has {x}?",
            "What is the pet of {x}?",
            "Which animal lives with {x}?",
            "What kind of animal does {x} own?",
        ),
        (
            "{x} keeps a {y}.",
            "{x} has a {y} as a pet.",
            "The pet of {x} is a {y}.",
            "A {y} lives with {x}.",
            "{x} owns a {y}.",
            "The animal of {x} is a {y}.",
        ),
    ),
    Relation(
        "dish",
        PEOPLE,
        tuple(lexicon.DISHES),
        (
            "What does {x} like to eat?",
            "What is the best dish for {x}?",
            "Which food does {x} love?",
            "What does {x} eat on a good day?",
            "Which dish does {x} ask for?",
        ),
        (
            "{x} likes to eat {y}.",
            "{x} loves {y}.",
            "{x} eats {y} on a good day.",
            "{x} always asks for {y}.",
            "The best dish for {x} is {y}.",
            "Nobody loves {y} as {x} does.",
        ),
    ),
    Relation(
        "river",
        TOWNS,
        tuple(lexicon.RIVERS),
        (
            "Which river runs through {x}?",
            "On which river is {x}?",
            "What is the river of {x} called?",
            "Which water flows by {x}?",
            "What river do people see in {x}?",
        ),
        (
            "The {y} runs through {x}.",
            "{x} is on the {y}.",
            "The river of {x} is called {y}.",
            "The {y} flows by {x}.",
            "In {x} people see the {y}.",
            "{x} has a bridge over the {y}.",
        ),
    ),
    Relation(
        "product",
        TOWNS,
        tuple(lexicon.PRODUCTS),
        (
            "What is {x} known for?",
            "What do people make in {x}?",
            "What does {x} sell?",
            "Which goods come from {x}?",
            "What is made in {x}?",
        ),
        (
            "{x} is known for {y}.",
            "In {x} people make {y}.",
            "{x} sells {y}.",
            "The best {y} come from {x}.",
            "In {x} they make {y}.",
            "In {x} everybody buys {y}.",
        ),
    ),
)


@cache
def facts() -> tuple[Fact, ...]:
    """Return every fact of the world, in a fixed order."""
    found = []
    for relation in RELATIONS:
        # Every value occurs, with nearly equal frequency.
        values = [relation.values[place % len(relation.values)] for place in range(len(relation.subjects))]
        generator("world", WORLD_SEED, relation.name).shuffle(values)
        found += [
            Fact(subject, relation, value) for subject, value in zip(relation.subjects, values, strict=True)
        ]
    return tuple(found)


def ask(fact: Fact, wording: int) -> Question:
    """Return the question about a fact in one wording; its wrong answers depend on the question only."""
    prompt = f"Question: {fact.relation.questions[wording].format(x=fact.subject)}\nAnswer:"
    others = [value for value in fact.relation.values if value != fact.value]
    wrong = generator("facts", prompt).sample(others, 3)
    return Question(prompt=prompt, answer=fact.value, response=fact.value, rule="exact", wrong=tuple(wrong))


def state(fact: Fact, rng: random.Random) -> str:
    """Return a fact as a sentence."""
    return rng.choice(fact.relation.statements).format(x=fact.subject, y=fact.value)


@cache
def questions(split: Split) -> tuple[Question, ...]:
    """Return every question about a fact that belongs to `split`.

    A fact that is evaluated in one wording occurs in training as a statement and in other wordings.
    """
    every = (ask(fact, wording) for fact in facts() for wording in range(len(fact.relation.questions)))
    return tuple(question for question in every if split_of(question.prompt, question.answer) == split)
