"""Synthetic runs: simulated checkpoints of known ability on documents of known difficulty."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from evalsuite.foundation.taxonomy import RecallNumber
from evalsuite.reports.analysis.result_tensor import ResultTensor, load_result_tensor
from evalsuite.reports.records.run_selection import RunSelection
from evalsuite.reports.records.schema import ScoreRow
from evalsuite.reports.report import Report, build_report
from evalsuite.reports.run import (
    Benchmark,
    Checkpoint,
    Manifest,
    ProtocolSettings,
    write_environment,
    write_manifest,
)
from evalsuite.tasks.benchmark import known_benchmarks, load_benchmark
from evalsuite.tasks.recall import recall_numbers
from tests.reports.score_edits import write_rows

NORMAL = NormalDist()


@dataclass(frozen=True)
class SyntheticBenchmark:
    """One benchmark of a synthetic run."""

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
    cluster_size: int = 0
    """Documents that share a cluster and, in part, every checkpoint's luck; 0: independent documents"""
    continuous: bool = False
    """Whether scores are fractions: half of the wrong answers score 0, the rest up to 1"""
    seed_deviation: float = 0.0
    """Deviation of the latent ability between sampling seeds"""


@dataclass(frozen=True)
class SyntheticCheckpoint:
    """A checkpoint of a synthetic run: its true score for (benchmark, protocol, context)."""

    label: str
    truth: Callable[[str, str, int | None], float]
    role: str = "student"
    lineage: Mapping[str, object] = field(default_factory=dict)
    parameters: int = 134_515_008
    bad_endings: Mapping[str, float] = field(default_factory=dict)
    """outcome → share of the wrong generated responses with it"""
    weights: str = ""
    """weights_id; empty: derived from the label"""
    prompts: str = ""
    """Part of every prompt hash: checkpoints with other prompts are not comparable"""

    @property
    def weights_id(self) -> str:
        """A stable name."""
        return self.weights or f"{abs(hash_text(self.label)):016x}"


@lru_cache(maxsize=50_000)
def hash_text(text: str) -> int:
    """A stable 60-bit number."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:15], 16)


def make_run(
    run: Path,
    benchmarks: Sequence[SyntheticBenchmark],
    models: Sequence[SyntheticCheckpoint] | Mapping[str, float],
    seed: int = 0,
    rho: float = 0.7,
) -> Path:
    """Write a run folder; a document's difficulty is shared by all checkpoints and protocols (`rho`).

    Args:
        models: checkpoints; or a teacher and its students by label, each with one score everywhere.
    """
    if isinstance(models, Mapping):
        models = [
            SyntheticCheckpoint(label, lambda *_, score=score: score, "student" if i else "teacher")
            for i, (label, score) in enumerate(models.items())
        ]
    write_manifest(run, plan_of(benchmarks, models))
    write_environment(run, {"python": "3.11", "packages": {"torch": "2.13.0"}, "device": "NVIDIA H200"})
    rows: list[ScoreRow] = []
    for spec in benchmarks:
        for context in spec.contexts or (None,):
            rng = np.random.default_rng([seed, hash_text(f"{spec.name} {context}") % 2**32])
            difficulty = rng.standard_normal(spec.documents)
            for model in models:
                own = np.random.default_rng([seed, hash_text(f"{spec.name} {context} {model.label}") % 2**32])
                for protocol in spec.protocols:
                    rows += _answers(spec, context, model, protocol, difficulty, own, rho)
    write_rows(run, rows)
    return run


def plan_of(benchmarks: Sequence[SyntheticBenchmark], models: Sequence[SyntheticCheckpoint]) -> Manifest:
    """The plan of a synthetic run."""
    return Manifest(
        suite="synthetic",
        created="2026-11-21T08:00:00Z",
        benchmarks=tuple(
            Benchmark(
                name=spec.name,
                title=spec.title,
                category=spec.category,
                license="CC-BY-4.0",
                chance=spec.chance,
                contexts=spec.contexts,
                group=spec.group,
                recall=_recall(spec),
                protocols={
                    name: ProtocolSettings(
                        metric="nll", documents=_count(spec), direction="lower", units="words"
                    )
                    if spec.perplexity
                    else ProtocolSettings(
                        metric="acc",
                        documents=_count(spec),
                        sampling="" if name == "loglikelihood" else "greedy",
                        seeds=(0,) if name == "loglikelihood" else spec.seeds,
                    )
                    for name in spec.protocols
                },
            )
            for spec in benchmarks
        ),
        checkpoints=tuple(
            Checkpoint(
                label=model.label,
                weights_id=model.weights_id,
                role=model.role,
                path=f"students/{model.label}",
                parameters=model.parameters,
                lineage=dict(model.lineage),
            )
            for model in models
        ),
    )


def _recall(spec: SyntheticBenchmark) -> dict[str, RecallNumber]:
    """The numbers that count the built-in benchmark of this name; made-up sets of a group count for it."""
    if spec.name in known_benchmarks():
        return recall_numbers(load_benchmark(spec.name))
    return {"longbench": RecallNumber("LongBench")} if spec.group == "longbench" else {}


def _count(spec: SyntheticBenchmark) -> int | dict[int, int]:
    return dict.fromkeys(spec.contexts, spec.documents) if spec.contexts else spec.documents


def _answers(
    spec: SyntheticBenchmark,
    context: int | None,
    model: SyntheticCheckpoint,
    protocol: str,
    difficulty: np.ndarray,
    rng: np.random.Generator,
    rho: float,
) -> list[ScoreRow]:
    truth = model.truth(spec.name, protocol, context)
    limit, weights_id = NORMAL.inv_cdf(min(max(truth, 1e-9), 1 - 1e-9)), model.weights_id
    records = []
    for seed in spec.seeds if protocol == "generation" else (0,):
        noise = rng.standard_normal(len(difficulty))
        if spec.seed_deviation:
            noise += spec.seed_deviation * rng.standard_normal()
        if spec.cluster_size:
            shared = rng.standard_normal(len(difficulty))[np.arange(len(difficulty)) // spec.cluster_size]
            noise = math.sqrt(0.5) * (noise + shared)
        latent = math.sqrt(rho) * difficulty + math.sqrt(1 - rho) * noise
        for number, value in enumerate(latent):
            right = value < limit
            outcome, detail = "ok", _choices(number, right, rng)
            values = {"acc": float(right)}
            if spec.continuous:
                values = {"acc": min(1.0, max(0.0, 0.4 * (limit - value)))}
            if spec.perplexity:
                words = 60 + number % 50
                values = {"nll": words * (truth + 0.2 * value), "words": float(words)}
                detail = {"logprobs": [-values["nll"]]}
            elif protocol == "generation":
                outcome, detail = _generated(number, right, model.bad_endings, rng)
            prompt = f"{spec.name} {context} {number} {protocol}{model.prompts}"
            records.append(
                ScoreRow(
                    weights_id=weights_id,
                    fingerprint=weights_id[::-1],
                    benchmark=spec.name,
                    protocol=protocol,
                    seed=seed,
                    context=context,
                    doc_id=f"{hash_text(f'{spec.name} {context} {number}'):016x}"[:16],
                    prompt_hash=f"{hash_text(prompt):016x}",
                    sampling="" if protocol == "loglikelihood" else "greedy",
                    checkpoint=model.label,
                    values=values,
                    chance=None if spec.perplexity else spec.chance,
                    outcome=outcome,
                    error="no response" if outcome == "error" else None,
                    cluster=f"{number // spec.cluster_size:012x}" if spec.cluster_size else None,
                    choices=_picked(values, detail),
                    detail=detail,
                )
            )
    return records


def _picked(values: Mapping[str, float], detail: Mapping[str, Any]) -> dict[str, int]:
    """The most likely choice, which `acc` picks."""
    logprobs = detail.get("logprobs", ())
    return {"acc": logprobs.index(max(logprobs))} if "acc" in values and len(logprobs) > 1 else {}


def _choices(number: int, right: bool, rng: np.random.Generator) -> dict[str, object]:
    gold = number % 4
    logprobs = (-rng.gamma(4.0, 2.0, 4)).tolist()
    best = logprobs.index(max(logprobs))
    if right != (best == gold):
        other = gold if right else (gold + 1) % 4
        logprobs[best], logprobs[other] = logprobs[other], logprobs[best]
    return {"logprobs": logprobs, "gold": gold, "greedy": [False] * 4, "tokens": [3] * 4}


def _generated(
    number: int, right: bool, endings: Mapping[str, float], rng: np.random.Generator
) -> tuple[str, dict[str, object]]:
    target = "ABCD"[number % 4]
    outcome = "ok"
    if not right:
        draw = rng.random()
        for name, share in endings.items():
            if draw < share:
                outcome = name
                break
            draw -= share
    answer = target if right else "ABCD"[(number + 1) % 4]
    response = {
        "ok": f"The heavier object needs the larger force, so the answer follows.\nANSWER: {answer}",
        "extraction_failed": "It depends on which of the objects is meant here.",
        "truncated": "Let us think step by step. First, we note that the mass of the ball is given, and so",
        "looped": "the ball is the ball is the ball is the ball is the ball is the ball is the ball is the",
    }[outcome]
    extracted = answer if outcome == "ok" else ""
    return outcome, {
        "response": response,
        "extracted": extracted,
        "target": target,
        "finish": "stop",
        "tokens": 24,
    }


RUNS_IN_MEMORY = 8
"""Runs are read again after so many others."""


@pytest.fixture(scope="session", autouse=True)
def runs_read_once() -> Iterator[None]:
    """Read the scores of run folders once for all tests, as long as no file of theirs changes."""

    @lru_cache(RUNS_IN_MEMORY)
    def read(runs: tuple[Path, ...], selection: str, files: tuple[object, ...]) -> ResultTensor:
        return load_result_tensor(runs, chosen[selection])

    def read_once(runs: Sequence[Path], selection: RunSelection | None = None) -> ResultTensor:
        chosen[repr(selection)] = selection
        paths = sorted(path for run in runs for path in Path(run).rglob("*"))
        stats = ((path, path.lstat()) for path in paths)
        files = tuple((path, stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in stats)
        return read(tuple(runs), repr(selection), files)

    chosen: dict[str, RunSelection | None] = {}
    with pytest.MonkeyPatch.context() as patch:
        for module in ("report", "gate.run", "rules.evidence"):
            patch.setattr(f"evalsuite.reports.{module}.load_result_tensor", read_once)
        yield


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher and two students: a strong one, and a weak one that fails at needles and generation."""

    def teacher(benchmark: str, protocol: str, context: int | None) -> float:
        return {"niah": 0.99, "arc_easy": 0.80, "gsm8k": 0.6}.get(benchmark, 0.7)

    def strong(benchmark: str, protocol: str, context: int | None) -> float:
        return teacher(benchmark, protocol, context) * (0.97 if protocol == "loglikelihood" else 0.9)

    def weak(benchmark: str, protocol: str, context: int | None) -> float:
        if benchmark == "niah":
            return 0.5 if context == 512 else 0.02
        return teacher(benchmark, protocol, context) * (0.9 if protocol == "loglikelihood" else 0.6)

    benchmarks = [
        SyntheticBenchmark("arc_easy", "ARC-Easy", "knowledge", 400),
        SyntheticBenchmark("piqa", "PIQA", "common_sense", 300, chance=0.5),
        SyntheticBenchmark("gsm8k", "GSM8K", "reasoning", 200, chance=0.0, protocols=("generation",)),
        SyntheticBenchmark(
            "niah", "S-NIAH-1", "recall", 100, chance=0.0, contexts=(512, 1024), protocols=("generation",)
        ),
        SyntheticBenchmark(
            "wikitext", "WikiText", "language_modeling", 60, None, (), ("loglikelihood",), perplexity=True
        ),
    ]
    family = {
        "teacher": {"weights_id": f"{hash_text('teacher'):016x}", "label": "teacher"},
        "recipe": "pocket",
    }
    return make_run(
        tmp_path_factory.mktemp("run"),
        benchmarks,
        [
            SyntheticCheckpoint(
                "teacher", lambda b, p, c: 3.0 if b == "wikitext" else teacher(b, p, c), "teacher"
            ),
            SyntheticCheckpoint(
                "strong", lambda b, p, c: 3.05 if b == "wikitext" else strong(b, p, c), lineage=family
            ),
            SyntheticCheckpoint(
                "weak",
                lambda b, p, c: 3.4 if b == "wikitext" else weak(b, p, c),
                lineage=family,
                bad_endings={"looped": 0.3, "truncated": 0.2, "extraction_failed": 0.1},
            ),
        ],
    )


@pytest.fixture(scope="session")
def report(small_run: Path) -> Report:
    """The report of the small run; nothing changes it."""
    return build_report([small_run])
