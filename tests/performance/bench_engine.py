"""The in-process engine and a peer on the same requests, tokenization included on both sides.

    python tests/performance/bench_engine.py --checkpoint pocket --mixer gated_deltanet --profile

Workloads: "hellaswag" (four continuations of several tokens per context), "mmlu" (a long few-shot context and
four one-token continuations), "generation" (prompts of different length, a fixed number of new tokens). The
texts are random words of the tokenizer. Each side runs several times after a short warm-up; the table
gives the best run and, as "first", the ratio of the first runs, which include kernel selection for new
shapes. The peer is lm-eval's HFLM, in the largest batches that fit, or vLLM (`--peer vllm`, which needs
EVALSUITE_VLLM_PYTHON). It may run a part of the documents (`--peer-share`): the ratio is one of rates.

`--profile` adds a run that attributes our wall time to phases of the host, and one that adds up the kernels.

Exits with 1 if the log-probabilities of the two sides differ by more than `--tolerance`.
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from evalsuite.cli.exit_codes import guarded
from evalsuite.foundation import write_json
from evalsuite.foundation.parser import Parser
from evalsuite.models import build_student
from evalsuite.models.checkpoints.load import Checkpoint, load_checkpoint
from evalsuite.models.decoder.cost import ModelCost, format_flops
from evalsuite.models.inference.in_process import InProcessEngine
from evalsuite.models.inference.response_cache import ResponseCache
from evalsuite.models.inference.stopping import StopChecker
from evalsuite.models.inference.torch import model_runner
from evalsuite.models.inference.torch.cuda_graphs import CudaGraphStep
from evalsuite.models.inference.torch.engine import TorchEngine
from evalsuite.models.inference.torch.loglikelihood import LoglikelihoodBatch
from evalsuite.models.inference.torch.model_runner import ModelRunner
from evalsuite.models.inference.torch.scheduler import GenerationScheduler
from evalsuite.protocols.tokenization import Encoder
from tests.performance.engine_workloads import (
    Workload,
    generate_requests,
    part,
    run_engine,
    score_requests,
    workloads,
)
from tests.performance.host_profile import HostProfile, Targets
from tests.performance.kernel_profile import profile_kernels
from tests.performance.peers import PEERS, Peer

TOLERANCES = {torch.float32: 0.01}
"""Maximum difference of a log-probability by dtype, in nats; 1 for others."""

MAX_LENGTH = 2048
"""Positions of both sides."""

PHASES: Targets = {
    "tokenization": [(Encoder, "pairs"), (Encoder, "encode")],
    "batch assembly": [
        (TorchEngine, "_score_batches"),
        (LoglikelihoodBatch, "__init__"),
        (model_runner, "pad_right"),
        (InProcessEngine, "_out_of_vocabulary"),
    ],
    "launch": [
        (ModelRunner, "prefill"),
        (LoglikelihoodBatch, "_score"),
        (GenerationScheduler, "_dispatch"),
        (GenerationScheduler, "_prefill_into"),
    ],
    "graph capture": [(CudaGraphStep, "_capture")],
    "read-back": [(LoglikelihoodBatch, "responses"), (GenerationScheduler, "_collect")],
    "stop criteria": [(StopChecker, "append")],
    "writing": [(ResponseCache, "add")],
}
"""What the host does, for `--profile`."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One row of the table. Rates are requests or generated tokens per second in the best run."""

    model: str
    workload: str
    unit: str
    ours: float
    peer: str
    peer_rate: float
    ratio: float
    first_ratio: float
    """Ratio of the first runs."""
    deviation: float
    """Largest difference of a log-probability; for generation, the share of responses that differ."""
    seconds: tuple[float, ...] = ()
    """Of our runs."""
    peer_seconds: tuple[float, ...] = ()
    """Of the peer's runs, on a part of the documents."""
    peer_batch_size: int = 0
    """Sequences of a pass of the peer, at most."""
    tflops: float | None = None
    """TFLOP/s of our best run, in which every token counts once; None for a foreign architecture."""
    profile: str = ""
    """Kernels and phases of our side."""


def profile_engine(engine: TorchEngine, encoder: Encoder, workload: Workload) -> str:
    """Phases of our side on the host, and its kernels; for generation, of the first 32 tokens."""
    phases = HostProfile()
    with TemporaryDirectory() as folder, phases.attribute(PHASES):
        started = time.perf_counter()
        run_engine(engine, encoder, workload, ResponseCache(Path(folder)))
        _synchronize()
        wall = time.perf_counter() - started
    short = replace(workload, new_tokens=min(workload.new_tokens, 32))
    kernels = profile_kernels(lambda: run_engine(engine, encoder, short))
    return f"{kernels}\n{phases.table(wall)}"


def compare(
    checkpoint: Checkpoint,
    workload: Workload,
    *,
    peer: Peer,
    warm: Workload,
    peer_share: float = 1.0,
    runs: int = 3,
    profiled: bool = False,
    fused_attention: bool = True,
) -> Timing:
    """Time both engines on one workload, each after a warm-up on `warm` (see `_timed`).

    Args:
        checkpoint: the model.
        workload, warm: what to run, and what to run before.
        peer: another engine with this checkpoint.
        peer_share: part of the documents that the peer runs.
        runs: of each side, at most; fewer if they take more than ten seconds.
        profiled: also profile our side.
        fused_attention: let softmax layers store keys and rotate in one kernel where it applies.
    """
    engine = TorchEngine(checkpoint, max_length=MAX_LENGTH)
    if not fused_attention:
        engine.runner.storing = None
    encoder = Encoder(checkpoint.tokenizer)
    mine, my_seconds = _timed(lambda each: run_engine(engine, encoder, each), workload, warm, runs)
    profile = profile_engine(engine, encoder, workload) if profiled else ""
    shared = part(workload, peer_share, workload.new_tokens)
    other, other_seconds = _timed(peer.run, shared, warm, runs)
    both = list(zip(mine, other, strict=False))
    flops = workload_flops(checkpoint, encoder, workload)
    if workload.prompts:
        unit, amount = "tokens", len(workload.prompts) * workload.new_tokens
        share = len(shared.prompts) / len(workload.prompts)
        deviation = sum(a != b for a, b in both) / len(both)
    else:
        unit, amount = "requests", len(workload.pairs)
        share = len(shared.pairs) / len(workload.pairs)
        deviation = max(abs(a[0] - b[0]) for a, b in both)
    return Timing(
        model=checkpoint.label,
        workload=workload.name,
        unit=unit,
        ours=amount / min(my_seconds),
        peer=peer.name,
        peer_rate=share * amount / min(other_seconds),
        ratio=min(other_seconds) / share / min(my_seconds),
        first_ratio=other_seconds[0] / share / my_seconds[0],
        deviation=deviation,
        seconds=tuple(my_seconds),
        peer_seconds=tuple(other_seconds),
        peer_batch_size=peer.batch_size(),
        tflops=None if flops is None else flops / min(my_seconds) / 1e12,
        profile=profile,
    )


def workload_flops(checkpoint: Checkpoint, encoder: Encoder, workload: Workload) -> float | None:
    """FLOPs of the decoder for every token that is read, and of the head where one is predicted."""
    cost = ModelCost.of(checkpoint.model.config)
    if cost.is_foreign:
        return None
    if workload.prompts:
        prompts = [len(request.prompt) for request in generate_requests(encoder, workload)]
        lengths = [length + workload.new_tokens - 1 for length in prompts]
        predicted = len(prompts) * workload.new_tokens
    else:
        requests = score_requests(encoder, workload)
        ends = [[len(tokens) for tokens in request.continuations] for request in requests]
        lengths = [
            len(request.context) + sum(end) - len(end) for request, end in zip(requests, ends, strict=True)
        ]
        predicted = sum(map(sum, ends))
    head = cost.forward_flops(1) - cost.forward_flops(1, head=False)
    return predicted * head + sum(length * cost.forward_flops(length, head=False) for length in lengths)


def _timed(
    run: Callable[[Workload], list[Any]], workload: Workload, warm: Workload, runs: int
) -> tuple[list[Any], list[float]]:
    """Results, and the seconds of up to `runs` runs (fewer if they take more than ten seconds)."""
    run(warm)
    seconds: list[float] = []
    while not seconds or (len(seconds) < runs and sum(seconds) < 10):
        gc.collect()
        _synchronize()
        start = time.perf_counter()
        results = run(workload)
        _synchronize()
        seconds.append(time.perf_counter() - start)
    return results, seconds


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def table(timings: Sequence[Timing]) -> str:
    """Text table of the timings."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    head = f"{'model':<26}{'workload':<12}{'ours/s':>12}{'peer':>12}{'peer/s':>12}{'ratio':>8}{'first':>8}"
    lines = [f"{head}  deviation  compute"]
    lines += [
        f"{t.model:<26}{t.workload:<12}{t.ours:>12,.0f}{t.peer:>12}{t.peer_rate:>12,.0f}"
        f"{t.ratio:>7.1f}×{t.first_ratio:>7.1f}×"
        f"  {t.deviation:<11.2g}{'–' if t.tflops is None else format_flops(1e12 * t.tflops, device)}"
        for t in timings
    ]
    lines += [f"{t.model}, {t.workload}: {t.profile}" for t in timings if t.profile]
    return "\n".join(lines)


def random_checkpoint(folder: Path, dtype: torch.dtype, device: str) -> Checkpoint:
    """A model with the config in `folder` and random weights, on which speed does not depend."""
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype).eval()
    return Checkpoint(folder.name, str(folder), model, AutoTokenizer.from_pretrained(folder), "0" * 16)


def student_of(teacher: Checkpoint, mixer: str) -> Checkpoint:
    """An untrained student of `teacher` with `mixer` in every layer."""
    student = build_student(teacher.model, mixer).eval()
    return replace(teacher, label=f"{teacher.label} {mixer}", model=student)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison, print the table and optionally write it as JSON."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", default="pocket", help="hub id, folder, GGUF file or pocket")
    parser.add_argument("--random", action="store_true", help="random weights of the checkpoint's config")
    parser.add_argument("--mixer", action="append", default=[], help="also a student with this mixer")
    parser.add_argument("--workload", action="append", help="hellaswag, mmlu or generation; default all")
    parser.add_argument("--scale", type=float, default=1.0, help="number of documents, 1 = full")
    parser.add_argument("--peer", choices=list(PEERS), default="hflm", help="what to compare with")
    parser.add_argument(
        "--peer-share", type=float, default=1.0, help="part of the documents that the peer runs"
    )
    parser.add_argument("--runs", type=int, default=3, help="runs of each side")
    parser.add_argument(
        "--plain-attention", action="store_true", help="softmax layers in separate operations"
    )
    parser.add_argument("--profile", action="store_true", help="attribute our time to phases and kernels")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default=None, help="default bfloat16 on a GPU, float32 on a CPU")
    parser.add_argument("--tolerance", type=float, help="nats; default 0.01 in float32, 1 otherwise")
    parser.add_argument("--out", type=Path, help="JSON file for the timings")
    options = parser.parse_args(arguments)
    dtype = getattr(torch, options.dtype or ("bfloat16" if options.device == "cuda" else "float32"))
    if options.random:
        teacher = random_checkpoint(Path(options.checkpoint), dtype, options.device)
    else:
        teacher = load_checkpoint(options.checkpoint, dtype=dtype, device=options.device)
    timings: list[Timing] = []
    for checkpoint in [teacher, *(student_of(teacher, mixer) for mixer in options.mixer)]:
        with PEERS[options.peer](checkpoint, MAX_LENGTH) as peer:
            for workload in workloads(checkpoint.tokenizer, options.scale):
                if options.workload and workload.name not in options.workload:
                    continue
                timings.append(
                    compare(
                        checkpoint,
                        workload,
                        peer=peer,
                        warm=part(workload, 0.1),
                        peer_share=options.peer_share,
                        runs=options.runs,
                        profiled=options.profile,
                        fused_attention=not options.plain_attention,
                    )
                )
                print(table(timings[-1:]), flush=True)
                if options.out:
                    write_json(options.out, [asdict(timing) for timing in timings])
    print(table(timings))
    tolerance = TOLERANCES.get(dtype, 1.0) if options.tolerance is None else options.tolerance
    return int(any(timing.unit == "requests" and timing.deviation > tolerance for timing in timings))


if __name__ == "__main__":
    sys.exit(guarded("bench_engine", main, resumable=False))
