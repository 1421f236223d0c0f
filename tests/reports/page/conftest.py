"""A synthetic run that fills every section of the page."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalsuite.foundation import append_jsonl, content_hash, write_json
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run


def make_rich_run(run: Path, documents: int = 60) -> Path:
    """A run that fills every section of the page."""
    single = [
        SyntheticBenchmark("arc_easy", "ARC-Easy", "knowledge", documents),
        SyntheticBenchmark("hellaswag", "HellaSwag", "common_sense", documents),
        SyntheticBenchmark("piqa", "PIQA", "common_sense", documents, chance=0.5),
        SyntheticBenchmark(
            "winogrande", "WinoGrande", "common_sense", documents, 0.5, (), ("loglikelihood",)
        ),
        SyntheticBenchmark("gsm8k", "GSM8K", "reasoning", documents // 2, 0.0, (), ("generation",)),
        SyntheticBenchmark(
            "ifeval", "IFEval", "instruction_following", documents // 2, 0.0, (), ("generation",)
        ),
        SyntheticBenchmark(
            "wikitext", "WikiText-2", "language_modeling", 40, None, (), ("loglikelihood",), perplexity=True
        ),
    ]
    needles = [
        SyntheticBenchmark(
            f"niah_single_{i}",
            f"S-NIAH-{i}",
            "recall",
            documents // 2,
            0.0,
            (512, 1024, 2048, 4096),
            ("generation",),
        )
        for i in (1, 2, 3)
    ]
    tasks = (
        "NarrativeQA",
        "Qasper",
        "MultiFieldQA-en",
        "HotpotQA",
        "2WikiMQA",
        "GovReport",
        "TREC",
        "RepoBench-P",
    )
    long = [
        SyntheticBenchmark(
            f"longbench_{task.lower()}",
            f"LongBench {task}",
            "recall",
            documents // 2,
            None,
            (),
            ("generation",),
            group="longbench",
        )
        for task in tasks
    ]
    base = {"arc_easy": 0.62, "hellaswag": 0.55, "piqa": 0.7, "winogrande": 0.56, "gsm8k": 0.4, "ifeval": 0.5}

    def ability(scale: float, loglikelihood: float, generation: float, recall: float) -> Callable[..., float]:
        def truth(benchmark: str, protocol: str, context: int | None) -> float:
            if benchmark == "wikitext":
                return 2.9 + 0.6 * (1 - loglikelihood)
            if context is not None:
                return 0.99 * recall ** (math.log2(context / 256) * int(benchmark[-1]) / 2)
            if benchmark.startswith("longbench"):
                return (0.1 + 0.05 * (len(benchmark) % 6)) * scale * recall
            return base[benchmark] * scale * (loglikelihood if protocol == "loglikelihood" else generation)

        return truth

    small = SyntheticCheckpoint("SmolLM2-135M", ability(1.0, 1.0, 1.0, 0.99), "teacher")
    large = SyntheticCheckpoint(
        "SmolLM2-360M", ability(1.15, 1.0, 1.0, 0.995), "teacher", parameters=361_821_120
    )

    def student(
        label: str,
        teacher: Any,
        skill: tuple[float, float, float],
        mixer: str = "gated_deltanet",
        *,
        kept: Sequence[int] = (),
        selector: str = "",
        tokens: int = 700_000_000,
        complete: bool = True,
    ) -> Any:
        mixers = ["softmax" if layer in kept else mixer for layer in range(30)]
        stages = [
            {"name": name, "objective": objective, "tokens": round(tokens * share)}
            for name, objective, share in (
                ("attention", "attention_output", 0.2), ("hidden", "hidden_state", 0.2), ("distil", "kd", 0.6)
            )
        ]  # fmt: skip
        lineage = {
            "teacher": {"weights_id": teacher.weights_id, "path": "HuggingFaceTB/" + teacher.label},
            "recipe": {
                "name": "linearizing-2025",
                "hash": content_hash([teacher.label, mixer, kept]),
            },
            "mixers": mixers,
            "seed": 0,
            "tokens": tokens,
            "stages": stages,
            "complete": complete,
            **({"selection": {"selector": selector, "layers": list(kept)}} if selector else {}),
        }
        scale = 1.0 if teacher is small else 1.15
        return SyntheticCheckpoint(
            label, ability(scale, *skill), lineage=lineage, parameters=teacher.parameters,
            bad_endings={"extraction_failed": 0.25, "truncated": 0.15, "looped": 0.3},
        )  # fmt: skip

    four, eight = (3, 9, 14, 27), (1, 3, 6, 9, 14, 18, 24, 27)
    students = [
        student("gdn-135m", small, (0.93, 0.62, 0.7)),
        student("gdn-135m-at-70M", small, (0.78, 0.35, 0.5), tokens=70_000_000, complete=False),
        student("gdn-135m-at-220M", small, (0.88, 0.5, 0.62), tokens=220_000_000, complete=False),
        student("kda-135m", small, (0.95, 0.6, 0.75), "kda"),
        student("gla-135m", small, (0.86, 0.66, 0.55), "gla"),
        student("gdn-4-ga_s2", small, (0.96, 0.8, 0.95), kept=four, selector="ga_s2"),
        student("gdn-8-ga_s2", small, (0.98, 0.88, 0.98), kept=eight, selector="ga_s2"),
        student("gdn-4-uniform", small, (0.95, 0.75, 0.86), kept=(0, 10, 20, 29), selector="uniform"),
        student("gdn-8-uniform", small, (0.97, 0.85, 0.95), kept=tuple(range(0, 29, 4)), selector="uniform"),
        student("gdn-360m", large, (0.96, 0.7, 0.8)),
        student("gla-360m", large, (0.9, 0.72, 0.65), "gla"),
    ]
    make_run(run, [*single, *needles, *long], [small, students[0], *students[1:9], large, *students[9:]])
    write_extras(run, [small, *students], four, eight)
    return run


def spread(median: float) -> dict[str, float]:
    """Three repeats around a median."""
    return {"median": median, "low": 0.99 * median, "high": 1.01 * median, "repeats": 3}


def write_extras(run: Path, costed: Sequence[Any], four: Sequence[int], eight: Sequence[int]) -> None:
    """Doctor results, efficiency records and layer selections of the rich run."""
    checks = [
        {
            "name": "batch of 8 vs. single",
            "status": "ok",
            "text": "same answers",
            "logprob": 2e-5,
            "changed": 0,
        },
        {
            "name": "chat template",
            "status": "warning",
            "text": "the system prompt is dropped",
            "changed": 0.01,
        },
    ]
    examined = [{"label": a.label, "weights_id": a.weights_id, "checks": checks} for a in costed[1:2]]
    write_json(run / "doctor.json", {"schema": 1, "checkpoints": examined})
    for number, answerer in enumerate(costed[:5]):
        for context in (1024, 4096, 16_384, 65_536):
            decode = 9000 / (1 + (context / 8192 if number == 0 else 0.02 * number))
            shared = {
                "schema": 2,
                "label": answerer.label,
                "weights_id": answerer.weights_id,
                "engine": "torch",
                "device": "NVIDIA H200",
                "dtype": "bfloat16",
                "parameters": 134_515_008,
                "context": context,
                "status": "ok",
                "cache_bytes": 92_160 * context if number == 0 else 30 * 9 * 64 * 64 * 4,
            }
            request = shared | {
                "kind": "request",
                "batch": 1,
                "ttft_ms": spread(0.01 * context * (1 + (context / 32768 if number == 0 else 0.5))),
                "step_ms": spread(8000 / decode),
                "peak_bytes": 2**30 + (92_160 * context if number == 0 else 2**25),
            }
            batch = shared | {"kind": "decode", "batch": 8, "step_ms": spread(8000 / decode), "joules": 0.02}
            append_jsonl(run / "efficiency.jsonl", [request, batch])
    rng = np.random.default_rng(0)
    history = []
    for step in range(0, 1900, 50):
        swapped = (
            [*four[:-1], int(rng.integers(20, 30))] if rng.random() < 0.9 * math.exp(-step / 500) else four
        )
        history.append({"step": step, "tokens": 16_384 * (step + 50), "layers": list(dict.fromkeys(swapped))})
    history.append({"step": 1900, "tokens": 16_384 * 1950, "layers": list(four)})
    scores = [float(x) for x in rng.gamma(1.5, 0.02, 30)]
    for rank, layer in enumerate(eight):
        scores[layer] = 0.13 + 0.01 * rank + (0.12 if layer in four else 0)

    def points(level: float) -> list[dict[str, object]]:
        return [
            {
                "layers": layers,
                "what": what,
                "score": s,
                "low": max(0.0, s - 0.05),
                "high": min(1.0, s + 0.04),
            }
            for what, reach in (("S-NIAH-1 at 2k, generation", 0.9), ("ARC-Easy, log-likelihood", 0.12))
            for layers in ([], list(four), list(eight), sorted({*eight, *range(0, 30, 3)}))
            for s in (0.98 - reach * level ** (1 + len(layers)),)
        ]

    ga = {
        "schema": 2,
        "selector": "ga_s2",
        "layers": list(four),
        "mixer": "gated_deltanet",
        "teacher": costed[0].weights_id,
        "measure": "KL divergence recovered by one swap, nats",
        "scores": scores,
        "history": history,
        "stop": {"step": 1900, "tokens": 16_384 * 1950, "planned": 16_384 * 4550, "reason": "stable"},
        "quality": points(0.8),
        "tokens": 30 * 300_000,
        "seconds": 512.0,
    }
    uniform = {"schema": 2, "selector": "uniform", "layers": [0, 10, 20, 29], "quality": points(0.88)}
    write_json(run / "selection.json", [ga, uniform])


@pytest.fixture(scope="session")
def rich_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that fills every section of the page."""
    return make_rich_run(tmp_path_factory.mktemp("rich"))
