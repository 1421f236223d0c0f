"""Students and prompts on which vLLM and the in-process engine are compared."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from evalsuite.models import MIXERS, build_student
from evalsuite.models.inference.requests import GenerateRequest, SamplingParams, ScoreRequest

WINDOW = 48
"""Sliding window, shorter than most long prompts."""
MAX_PROMPT_LENGTH = 1000
NUM_GENERATED = 16
"""Tokens generated per prompt."""


@dataclass(frozen=True, slots=True)
class StudentCase:
    """A name and a mixer per layer."""

    name: str
    mixers: tuple[str, ...]


def pure(mixer: str, layers: int) -> StudentCase:
    """A student with one mixer in all layers."""
    return StudentCase(mixer, (mixer,) * layers)


def hybrid(mixer: str, layers: int) -> StudentCase:
    """A student with one mixer, and softmax in every fourth layer."""
    names = tuple("softmax" if layer % 4 == 3 else mixer for layer in range(layers))
    return StudentCase(f"{mixer}, a quarter softmax", names)


def all_students(layers: int) -> list[StudentCase]:
    """Each mixer that vLLM serves, pure and with a quarter of softmax layers, and one student with four kinds
    of state."""
    students = []
    for mixer in (name for name, kind in MIXERS.items() if kind.served_as):
        students.append(pure(mixer, layers))
        if mixer != "softmax":
            students.append(hybrid(mixer, layers))
    kinds = ("rebased", "kda", "sliding_window", "hgrn2")
    students.append(
        StudentCase("rebased, kda, sliding_window, hgrn2", tuple(kinds[n % 4] for n in range(layers)))
    )
    return students


def select_students(layers: int, *, pure_mixers: Sequence[str], hybrids: Sequence[str]) -> list[StudentCase]:
    """Pure students and hybrids of the given mixers; all students if none are given."""
    selected = [pure(mixer, layers) for mixer in pure_mixers] + [hybrid(mixer, layers) for mixer in hybrids]
    return selected or all_students(layers)


def save_student(case: StudentCase, teacher: PreTrainedModel, tokenizer: Any, folder: Path) -> Path:
    """Build a student of `teacher` with perturbed gates, many of which start as constants, and save it."""
    options = {"sliding_window": {"window": WINDOW}} if "sliding_window" in case.mixers else {}
    student = build_student(teacher, list(case.mixers), options=options, seed=0).eval()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in student.named_parameters():
            if ".self_attn." in name:
                size = 0.05 if parameter.dim() < 2 else 0.3 * float(parameter.float().std())
                parameter += (size * torch.randn(parameter.shape, generator=draw)).to(parameter.dtype)
    student.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


TokenSource = Callable[[random.Random, int], tuple[int, ...]]
"""Draws a text of a given number of tokens."""


def random_tokens(vocab_size: int) -> TokenSource:
    """Source of uniformly random tokens."""
    return lambda draw, length: tuple(draw.randrange(2, vocab_size) for _ in range(length))


def text_spans(tokens: Sequence[int]) -> TokenSource:
    """Source of random spans of a long text."""

    def span(draw: random.Random, length: int) -> tuple[int, ...]:
        start = draw.randrange(len(tokens) - length)
        return tuple(tokens[start : start + length])

    return span


def generate_requests(count: int, source: TokenSource, seed: int = 0) -> list[GenerateRequest]:
    """Prompts of 1 to 1,000 tokens, log-uniform in length, including both extremes.

    Every fourth prompt starts with a recent long one, so that a prefix cache gets hits.
    """
    draw = random.Random(seed)
    lengths = [1, MAX_PROMPT_LENGTH, *(round(MAX_PROMPT_LENGTH ** draw.random()) for _ in range(count - 2))]
    texts: list[tuple[int, ...]] = []
    for number, length in enumerate(lengths):
        text = source(draw, length)
        if number % 4 == 3:
            text = (max(texts[-8:], key=len) + text)[:MAX_PROMPT_LENGTH]
        texts.append(text)
    return [GenerateRequest(text, SamplingParams(NUM_GENERATED)) for text in texts]


def score_requests(count: int, source: TokenSource, seed: int = 1) -> list[ScoreRequest]:
    """Contexts of 1 to 300 tokens, each with a continuation of one token and one of several."""
    draw = random.Random(seed)
    return [
        ScoreRequest(
            source(draw, round(300 ** draw.random())), (source(draw, 1), source(draw, draw.randint(2, 8)))
        )
        for _ in range(count)
    ]
