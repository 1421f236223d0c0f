"""Simulated answers to multiple-choice documents, and simulated KL divergences, with a known truth."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from evalsuite.reports.analysis.cells import Cell
from evalsuite.reports.analysis.counting import Counting
from evalsuite.reports.records.merging import CheckpointEntry
from evalsuite.reports.run import Benchmark, ProtocolSettings

CHOICES = 4
CHANCE = 1 / CHOICES
PROTOCOL = "loglikelihood"
TEACHER = "teacher"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Independent documents: a student repeats the teacher's choice, or chooses by itself."""

    documents: int
    """Of each benchmark."""
    teacher: tuple[float, ...] = (0.6,)
    """Its true score on each benchmark."""
    copied: tuple[float, ...] = (0.7,)
    """Of each student, the probability that it repeats the teacher's choice."""
    alone: tuple[float, ...] = (0.45,)
    """Its true score where it does not, on all benchmarks; one value for all students, or one each."""
    tokens: tuple[int, ...] = ()
    """Training tokens of the students, in millions; empty: not stated."""

    def _alone(self, student: int) -> float:
        return self.alone[student if len(self.alone) > 1 else 0]

    def student_score(self, benchmark: int, student: int = 0) -> float:
        """True score of a student."""
        copied = self.copied[student]
        return copied * self.teacher[benchmark] + (1 - copied) * self._alone(student)

    def truth(self, measure: str) -> float:
        """True agreement, κ, retained or lost of the first student on the first benchmark."""
        copied, alone, right = self.copied[0], self._alone(0), self.teacher[0]
        retained = copied + (1 - copied) * alone
        if measure == "retained":
            return retained
        if measure == "lost":
            return right * (1 - retained)
        by_chance = right * alone + (1 - right) * (1 - alone) / (CHOICES - 1)
        agreement = copied + (1 - copied) * by_chance
        # Right choices are spread evenly, so that both choose each letter equally often.
        return agreement if measure == "agreement" else (agreement - CHANCE) / (1 - CHANCE)


def _choose(gold: np.ndarray, score: float, rng: np.random.Generator) -> np.ndarray:
    """The right choice with probability `score`, else any other. [documents]"""
    wrong = (gold + rng.integers(1, CHOICES, len(gold))) % CHOICES
    return np.where(rng.random(len(gold)) < score, gold, wrong)


def draw_answers(setting: Answers, rng: np.random.Generator) -> SimpleNamespace:
    """Draw, per benchmark, the right choices [D] and those of the teacher and its students [C, D]."""
    found = []
    for right in setting.teacher:
        gold = rng.integers(0, CHOICES, setting.documents)
        theirs = _choose(gold, right, rng)
        rows = [theirs]
        for student, copied in enumerate(setting.copied):
            mine = _choose(gold, setting._alone(student), rng)
            rows.append(np.where(rng.random(setting.documents) < copied, theirs, mine))
        found.append((gold, np.stack(rows)))
    return SimpleNamespace(setting=setting, benchmarks=found, name=str(rng.integers(1 << 62)))


def tensor_of(drawn: SimpleNamespace) -> Any:
    """Drawn answers as what the analysis reads of a result tensor."""
    setting: Answers = drawn.setting
    cells = tuple(
        _cell(f"b{number}", drawn.name, gold, choices)
        for number, (gold, choices) in enumerate(drawn.benchmarks)
    )
    labels = [TEACHER, *(f"student-{i}" for i in range(len(setting.copied)))]
    checkpoints = tuple(_checkpoints(labels, setting.tokens))
    return SimpleNamespace(cells=cells, checkpoints=checkpoints, counting=Counting(cells))


def _checkpoints(labels: Sequence[str], tokens: Sequence[int]) -> list[CheckpointEntry]:
    found = []
    for number, label in enumerate(labels):
        lineage: dict[str, Any] = {}
        if number and tokens:
            lineage = {"recipe": "r", "seed": 0, "mixers": ["gla"], "tokens": tokens[number - 1] * 10**6}
        entry = CheckpointEntry(
            label=label,
            label_in_run=label,
            weights_id=label,
            role="student" if number else "teacher",
            path=label,
            parameters=1,
            lineage=lineage,
            teacher=0 if number else None,
        )
        found.append(entry)
    return found


def _cell(benchmark: str, name: str, gold: np.ndarray, choices: np.ndarray) -> Cell:
    """Gold [D] and choices [C, D] as one cell; its resamples depend on `name`."""
    documents = len(gold)
    shape = (len(choices), 1, documents)
    zeros = np.zeros(shape, dtype=np.int32)
    return Cell(
        benchmark=Benchmark(
            name=benchmark,
            title=benchmark,
            category="knowledge",
            license="",
            chance=CHANCE,
            protocols={PROTOCOL: ProtocolSettings(metric="acc", documents=documents)},
        ),
        protocol=PROTOCOL,
        context=None,
        seeds=(0,),
        present=tuple(range(len(choices))),
        documents=np.array([f"{name}-{i}" for i in range(documents)]),
        values=(choices == gold).astype(float)[:, None, :],
        outcomes=zeros,
        lines=zeros,
        score_files=zeros,
        chance=np.full(documents, CHANCE),
        units=np.ones(shape),
        prompt_hashes=np.array([f"{benchmark}-{i}" for i in range(documents)]),
        answers=choices.astype(np.int32)[:, None, :],
        scored_answers=choices.astype(np.int32)[:, None, :],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergences:
    """KL divergences per document: token counts and levels vary, and models vary together."""

    documents: int
    spread: float
    """Standard deviation of the logarithm of a document's KL per token, for every model."""
    level: float
    """True KL of the student, in nats per token."""
    scale: tuple[tuple[int, float], ...] = ((8, 0.002), (6, 0.04), (5, 0.15), (4, 0.7), (3, 4.0), (2, 16.0))
    """Bits and the true KL of the rounded teacher."""
    correlation: float = 0.7
    """Of the logarithms of two models on one document."""


def draw_divergences(setting: Divergences, rng: np.random.Generator) -> tuple[Any, pd.DataFrame]:
    """Draw the rows of `distances.parquet` for a student and the roundings, with what names them."""
    count = setting.documents
    tokens = rng.integers(200, 2048, count)
    common = np.sqrt(setting.correlation) * rng.standard_normal(count)
    name = str(rng.integers(1 << 62))
    frames = []
    for bits, level in ((None, setting.level), *setting.scale):
        own = np.sqrt(1 - setting.correlation) * rng.standard_normal(count)
        per_token = level * np.exp(setting.spread * (common + own) - setting.spread**2 / 2)
        frames.append(
            pd.DataFrame(
                {
                    "weights_id": "student-0" if bits is None else TEACHER,
                    "bits": bits,
                    "same_recipe_as": None,
                    "teacher": TEACHER,
                    "text": "held-out",
                    "source": "books",
                    "doc_id": [f"{name}-{i}" for i in range(count)],
                    "token_class": None,
                    "positions": None,
                    "tokens": tokens,
                    "kl": tokens * per_token,
                    "agreement": tokens // 2,
                }
            ).astype({"bits": "Int64"})
        )
    checkpoints = tuple(_checkpoints([TEACHER, "student-0"], ()))
    tensor = SimpleNamespace(checkpoints=checkpoints, cells=(), counting=Counting(()))
    return tensor, pd.concat(frames, ignore_index=True)
