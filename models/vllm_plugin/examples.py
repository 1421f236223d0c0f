"""Students and prompts on which vLLM and the in-process engine are compared."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from evalsuite.models import MIXERS, build_student
from evalsuite.models.engine.requests import GenerateRequest, Sampling, ScoreRequest

WINDOW = 48
"""A sliding window that most long prompts reach beyond."""
LONGEST = 1000
WRITTEN = 16
"""Tokens that are written after each prompt."""


@dataclass(frozen=True, slots=True)
class Student:
    """A name and a mixer per layer."""

    name: str
    mixers: tuple[str, ...]


def pure(mixer: str, layers: int) -> Student:
    """One mixer in every layer."""
    return Student(mixer, (mixer,) * layers)


def hybrid(mixer: str, layers: int) -> Student:
    """One mixer, and softmax in every fourth layer."""
    names = tuple("softmax" if layer % 4 == 3 else mixer for layer in range(layers))
    return Student(f"{mixer}, a quarter softmax", names)


def every_student(layers: int) -> list[Student]:
    """Every mixer pure and with a quarter of softmax layers, and one student of four kinds of state."""
    students = []
    for mixer in MIXERS:
        students.append(pure(mixer, layers))
        if mixer != "softmax":
            students.append(hybrid(mixer, layers))
    kinds = ("rebased", "kda", "sliding_window", "hgrn2")
    students.append(
        Student("rebased, kda, sliding_window, hgrn2", tuple(kinds[n % 4] for n in range(layers)))
    )
    return students


def chosen_students(layers: int, *, alone: Sequence[str], hybrids: Sequence[str]) -> list[Student]:
    """Pure students and hybrids of the mixers that are named; every student if none is."""
    named = [pure(mixer, layers) for mixer in alone] + [hybrid(mixer, layers) for mixer in hybrids]
    return named or every_student(layers)


def save(student: Student, teacher: PreTrainedModel, tokenizer: Any, folder: Path) -> Path:
    """Build a student of `teacher`, its gates moved off their start, where many are constant; save it."""
    options = {"sliding_window": {"window": WINDOW}} if "sliding_window" in student.mixers else {}
    built = build_student(teacher, list(student.mixers), options=options, seed=0).eval()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if ".self_attn." in name:
                size = 0.05 if parameter.dim() < 2 else 0.3 * float(parameter.float().std())
                parameter += (size * torch.randn(parameter.shape, generator=draw)).to(parameter.dtype)
    built.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


Source = Callable[[random.Random, int], tuple[int, ...]]
"""Draws a text of so many tokens."""


def noise(vocabulary: int) -> Source:
    """Random tokens."""
    return lambda draw, length: tuple(draw.randrange(2, vocabulary) for _ in range(length))


def prose(tokens: Sequence[int]) -> Source:
    """Pieces of a long text."""

    def cut(draw: random.Random, length: int) -> tuple[int, ...]:
        start = draw.randrange(len(tokens) - length)
        return tuple(tokens[start : start + length])

    return cut


def prompts(count: int, source: Source, seed: int = 0) -> list[GenerateRequest]:
    """Prompts of 1 to 1,000 tokens, as many of each order of magnitude, the two ends among them.

    Every fourth begins as a long one before it, so that a prefix cache has something to find.
    """
    draw = random.Random(seed)
    lengths = [1, LONGEST, *(round(LONGEST ** draw.random()) for _ in range(count - 2))]
    texts: list[tuple[int, ...]] = []
    for number, length in enumerate(lengths):
        text = source(draw, length)
        if number % 4 == 3:
            text = (max(texts[-8:], key=len) + text)[:LONGEST]
        texts.append(text)
    return [GenerateRequest(text, Sampling(WRITTEN)) for text in texts]


def questions(count: int, source: Source, seed: int = 1) -> list[ScoreRequest]:
    """Contexts of 1 to 300 tokens, each with a continuation of one token and one of several."""
    draw = random.Random(seed)
    return [
        ScoreRequest(
            source(draw, round(300 ** draw.random())), (source(draw, 1), source(draw, draw.randint(2, 8)))
        )
        for _ in range(count)
    ]
