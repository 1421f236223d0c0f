"""Runs made of dice: checkpoints of known ability answer documents of known difficulty."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import pytest

from evalsuite.reports.records import Record, append_records
from evalsuite.reports.run_folder import (
    BenchmarkPlan,
    CheckpointPlan,
    Plan,
    ProtocolPlan,
    write_environment,
    write_plan,
)

NORMAL = NormalDist()


@dataclass(frozen=True)
class Asked:
    """A benchmark of a synthetic run."""

    name: str
    title: str
    category: str
    documents: int = 200
    chance: float | None = 0.25
    contexts: tuple[int, ...] = ()
    protocols: tuple[str, ...] = ("loglikelihood", "generation")
    seeds: tuple[int, ...] = (0,)
    group: str | None = None
    perplexity: bool = False


@dataclass(frozen=True)
class Answerer:
    """A checkpoint of a synthetic run: its true score for (benchmark, protocol, context)."""

    label: str
    truth: Callable[[str, str, int | None], float]
    role: str = "student"
    lineage: Mapping[str, object] = field(default_factory=dict)
    parameters: int = 134_515_008
    bad_endings: Mapping[str, float] = field(default_factory=dict)
    """outcome → share of the wrong written answers that end so"""
    weights: str = ""
    """its weights_id; empty: one that follows from the label"""

    @property
    def weights_id(self) -> str:
        """A stable name."""
        return self.weights or f"{abs(hash_text(self.label)):016x}"


def hash_text(text: str) -> int:
    """A stable 60-bit number."""
    import hashlib

    return int(hashlib.sha256(text.encode()).hexdigest()[:15], 16)


def make_run(
    run: Path, benchmarks: Sequence[Asked], answerers: Sequence[Answerer], seed: int = 0, rho: float = 0.7
) -> Path:
    """Write a run folder; a document's difficulty is shared by all checkpoints and protocols (`rho`)."""
    write_plan(run, plan_of(benchmarks, answerers))
    write_environment(run, {"python": "3.11", "packages": {"torch": "2.13.0"}, "device": "NVIDIA H200"})
    for asked in benchmarks:
        for context in asked.contexts or (None,):
            rng = np.random.default_rng([seed, hash_text(f"{asked.name} {context}") % 2**32])
            difficulty = rng.standard_normal(asked.documents)
            for answerer in answerers:
                own = np.random.default_rng(
                    [seed, hash_text(f"{asked.name} {context} {answerer.label}") % 2**32]
                )
                for protocol in asked.protocols:
                    append_records(run, _answers(asked, context, answerer, protocol, difficulty, own, rho))
    return run


def plan_of(benchmarks: Sequence[Asked], answerers: Sequence[Answerer]) -> Plan:
    """The plan of a synthetic run."""
    return Plan(
        suite="synthetic",
        created="2026-11-21T08:00:00Z",
        benchmarks=tuple(
            BenchmarkPlan(
                name=asked.name,
                title=asked.title,
                category=asked.category,
                licence="CC-BY-4.0",
                chance=asked.chance,
                contexts=asked.contexts,
                group=asked.group,
                protocols={
                    name: ProtocolPlan(metric="nll", direction="lower", units="words")
                    if asked.perplexity
                    else ProtocolPlan(
                        metric="acc",
                        sampling="" if name == "loglikelihood" else "greedy",
                        seeds=(0,) if name == "loglikelihood" else asked.seeds,
                    )
                    for name in asked.protocols
                },
            )
            for asked in benchmarks
        ),
        checkpoints=tuple(
            CheckpointPlan(
                label=answerer.label,
                weights_id=answerer.weights_id,
                role=answerer.role,
                path=f"students/{answerer.label}",
                parameters=answerer.parameters,
                lineage=dict(answerer.lineage),
            )
            for answerer in answerers
        ),
    )


def _answers(
    asked: Asked,
    context: int | None,
    answerer: Answerer,
    protocol: str,
    difficulty: np.ndarray,
    rng: np.random.Generator,
    rho: float,
) -> list[Record]:
    truth = answerer.truth(asked.name, protocol, context)
    records = []
    for seed in asked.seeds if protocol == "generation" else (0,):
        noise = rng.standard_normal(len(difficulty))
        latent = math.sqrt(rho) * difficulty + math.sqrt(1 - rho) * noise
        for number, value in enumerate(latent):
            right = value < NORMAL.inv_cdf(min(max(truth, 1e-9), 1 - 1e-9))
            outcome, detail = "ok", _choices(number, right, rng)
            values = {"acc": float(right)}
            if asked.perplexity:
                words = 60 + number % 50
                values = {"nll": words * (truth + 0.2 * value), "words": float(words)}
                detail = {"logprobs": [-values["nll"]]}
            elif protocol == "generation":
                outcome, detail = _written(number, right, answerer.bad_endings, rng)
            records.append(
                Record(
                    weights_id=answerer.weights_id,
                    fingerprint=answerer.weights_id[::-1],
                    benchmark=asked.name,
                    protocol=protocol,
                    seed=seed,
                    context=context,
                    doc_id=f"{hash_text(f'{asked.name} {context} {number}'):016x}"[:16],
                    prompt_hash=f"{hash_text(f'{asked.name} {context} {number} {protocol}'):016x}",
                    sampling="" if protocol == "loglikelihood" else "greedy",
                    checkpoint=answerer.label,
                    values=values,
                    chance=None if asked.perplexity else asked.chance,
                    outcome=outcome,
                    detail=detail,
                )
            )
    return records


def _choices(number: int, right: bool, rng: np.random.Generator) -> dict[str, object]:
    gold = number % 4
    logprobs = -rng.gamma(4.0, 2.0, 4)
    best = int(np.argmax(logprobs))
    if right != (best == gold):
        other = gold if right else (gold + 1) % 4
        logprobs[[best, other]] = logprobs[[other, best]]
    return {"logprobs": [float(x) for x in logprobs], "gold": gold, "greedy": [False] * 4, "tokens": [3] * 4}


def _written(
    number: int, right: bool, endings: Mapping[str, float], rng: np.random.Generator
) -> tuple[str, dict[str, object]]:
    target = "ABCD"[number % 4]
    outcome = "ok"
    if not right:
        dice = rng.random()
        for name, share in endings.items():
            if dice < share:
                outcome = name
                break
            dice -= share
    said = target if right else "ABCD"[(number + 1) % 4]
    response = {
        "ok": f"The heavier object needs the larger force, so the answer follows.\nANSWER: {said}",
        "extraction_failed": "It depends on which of the objects is meant here.",
        "truncated": "Let us think step by step. First, we note that the mass of the ball is given, and so",
        "looped": "the ball is the ball is the ball is the ball is the ball is the ball is the ball is the",
    }[outcome]
    extracted = said if outcome == "ok" else ""
    return outcome, {
        "response": response,
        "extracted": extracted,
        "target": target,
        "finish": "stop",
        "tokens": 24,
    }


@pytest.fixture(scope="session")
def dice() -> SimpleNamespace:
    """What makes synthetic runs, for tests that throw their own."""
    return SimpleNamespace(Asked=Asked, Answerer=Answerer, make_run=make_run, plan_of=plan_of)


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher and two students; one strong, one that loses its needles and its writing."""

    def teacher(benchmark: str, protocol: str, context: int | None) -> float:
        return {"niah": 0.99, "arc_easy": 0.80, "gsm8k": 0.6}.get(benchmark, 0.7)

    def strong(benchmark: str, protocol: str, context: int | None) -> float:
        return teacher(benchmark, protocol, context) * (0.97 if protocol == "loglikelihood" else 0.9)

    def weak(benchmark: str, protocol: str, context: int | None) -> float:
        if benchmark == "niah":
            return 0.5 if context == 512 else 0.02
        return teacher(benchmark, protocol, context) * (0.9 if protocol == "loglikelihood" else 0.6)

    benchmarks = [
        Asked("arc_easy", "ARC-Easy", "knowledge", 400),
        Asked("piqa", "PIQA", "common_sense", 300, chance=0.5),
        Asked("gsm8k", "GSM8K", "reasoning", 200, chance=0.0, protocols=("generation",)),
        Asked("niah", "S-NIAH-1", "recall", 100, chance=0.0, contexts=(512, 1024), protocols=("generation",)),
        Asked("wikitext", "WikiText", "language_modeling", 60, None, (), ("loglikelihood",), perplexity=True),
    ]
    family = {
        "teacher": {"weights_id": f"{hash_text('teacher'):016x}", "label": "teacher"},
        "recipe": "pocket",
    }
    return make_run(
        tmp_path_factory.mktemp("run"),
        benchmarks,
        [
            Answerer("teacher", lambda b, p, c: 3.0 if b == "wikitext" else teacher(b, p, c), "teacher"),
            Answerer("strong", lambda b, p, c: 3.05 if b == "wikitext" else strong(b, p, c), lineage=family),
            Answerer(
                "weak",
                lambda b, p, c: 3.4 if b == "wikitext" else weak(b, p, c),
                lineage=family,
                bad_endings={"looped": 0.3, "truncated": 0.2, "extraction_failed": 0.1},
            ),
        ],
    )
