"""Training throughput of `distill`: `make bench-distill`, or `python tests/performance/bench_distill.py`.

Times the trainer's steps on random tokens against a naive knowledge-distillation step (full logits of teacher
and student, compared in fp32) in the same process, so that the ratios are comparable across devices. First
checks the optimized step against fp32 torch; finally profiles one step. Under `torchrun` every GPU takes
`--batch-size` sequences:

    torchrun --nproc_per_node 2 tests/performance/bench_distill.py --only kd losses

Exits with 0, or with 1 if the optimized step differs from fp32 torch.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, LlamaConfig, PreTrainedConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from evalsuite.cli.exit_codes import guarded
from evalsuite.distill.training.distributed import ProcessGroup
from evalsuite.distill.training.provenance import package_versions
from evalsuite.foundation import write_json, write_text
from evalsuite.foundation.parser import Parser
from evalsuite.models.checkpoints.load import load_config
from tests.performance.distill_accuracy import check_accuracy, failures
from tests.performance.distill_profile import profile, profile_table
from tests.performance.distill_steps import Bench, Timing

SMOLLM2_135M = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
QWEN3_600M = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
"""Qwen3-0.6B's shape, as a Llama (without norms of queries and keys)."""
TINY = {
    **SMOLLM2_135M,
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2}
SHAPES = {"smollm2-135m": SMOLLM2_135M, "qwen3-0.6b": QWEN3_600M, "tiny": TINY}
"""Arguments of a LlamaConfig, by name."""
SHARED_TEACHER_MIXERS = ("linear_attention", "retnet", "gla", "gated_deltanet")
ALL_MIXERS = (*SHARED_TEACHER_MIXERS, "deltanet", "kda", "mlstm")
SECTIONS = (
    "accuracy",
    "naive",
    "kd",
    "layerwise",
    "shared_teacher",
    "shared_teacher_kd",
    "all_mixers",
    "losses",
    "profile",
)


def measurements(
    bench: Bench, mixer: str, sections: Sequence[str], naive_batch_size: int | None
) -> Iterator[Callable[[], Timing]]:
    """The measurements of the given sections, as one function each."""
    batch_size = bench.batch_size
    if "naive" in sections:
        for autocast in (True, False) if bench.bf16 else (True,):
            yield partial(bench.naive_step, mixer, autocast=autocast, batch_size=naive_batch_size)
    if "kd" in sections:
        sizes = {batch_size, max(1, batch_size // 2), max(1, batch_size // 4)}
        if bench.process_group.world_size > 1:
            sizes = {batch_size}
        for micro_batch_size in sorted(sizes, reverse=True):
            yield partial(bench.trainer_step, "kd", [mixer], micro_batch_size)
    if "layerwise" in sections:
        yield lambda: bench.trainer_step("attention_output", [mixer], batch_size)
    if "shared_teacher" in sections:
        for name in SHARED_TEACHER_MIXERS:
            if name != mixer or "layerwise" not in sections:
                yield partial(bench.trainer_step, "attention_output", [name], batch_size)
        yield lambda: bench.trainer_step("attention_output", SHARED_TEACHER_MIXERS, batch_size)
    if "shared_teacher_kd" in sections:
        for names in (*([name] for name in SHARED_TEACHER_MIXERS), SHARED_TEACHER_MIXERS):
            yield partial(bench.trainer_step, "kd", names, batch_size)
    if "all_mixers" in sections:
        for name in ALL_MIXERS:
            yield partial(bench.trainer_step, "kd", [name], batch_size)
            yield partial(bench.trainer_step, "attention_output", [name], batch_size)


def table(timings: Sequence[Timing]) -> str:
    """The timings as Markdown."""
    lines = [
        "| step | GPUs | batch × seq_len | micro-batch | tokens/s per student | peak GB | reserved GB "
        "| TFLOP/s per GPU | of the dense peak |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for timing in timings:
        peak = "–" if timing.peak_gigabytes is None else f"{timing.peak_gigabytes:.1f}"
        reserved = "–" if timing.reserved_gigabytes is None else f"{timing.reserved_gigabytes:.1f}"
        mfu = "–" if timing.mfu is None else f"{timing.mfu:.1%}"
        lines.append(
            f"| {timing.name} | {timing.gpus} | {timing.batch_size} × {timing.seq_len} "
            f"| {timing.micro_batch_size} | {timing.tokens_per_second:,.0f} | {peak} | {reserved} "
            f"| {timing.tflops:,.3g} | {mfu} |"
        )
    return "\n".join(lines)


def ratios(timings: Sequence[Timing]) -> list[str]:
    """Speedups over the faster naive step, and of sharing the teacher forward between students."""
    lines = []
    naive = [timing for timing in timings if timing.name.startswith("naive")]
    ours = [timing for timing in timings if timing.name.startswith("kd ") and timing.students == 1]
    if naive and ours:
        best = max(naive, key=lambda timing: timing.tokens_per_second)
        for timing in ours:
            speedup = timing.tokens_per_second / best.tokens_per_second
            line = f"kd, micro-batch {timing.micro_batch_size}: {speedup:.2f} × naive"
            if timing.peak_gigabytes is not None and best.peak_gigabytes:
                line += f", {timing.peak_gigabytes / best.peak_gigabytes:.2f} × its peak memory"
            lines.append(line)
    for together in timings:
        objective = together.name.split()[0]
        alone = {
            timing.name.split()[-1]: timing.tokens_per_second
            for timing in timings
            if timing.students == 1 and timing.name.startswith(f"{objective} ")
        }
        if together.students > 1 and all(mixer in alone for mixer in SHARED_TEACHER_MIXERS):
            separately = sum(1 / alone[mixer] for mixer in SHARED_TEACHER_MIXERS)
            lines.append(
                f"{objective}, {together.students} students sharing one teacher forward: "
                f"{separately * together.tokens_per_second:.2f} × as fast as separate runs"
            )
    return lines


def teacher_config(path: str) -> PreTrainedConfig:
    """Config of a teacher: that of a checkpoint, or a config.json."""
    if path.endswith(".json"):
        return AutoConfig.from_pretrained(path)
    config: PreTrainedConfig = load_config(path)
    return config


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the measurements and print the tables; 1 if the optimized step is not accurate."""
    parser = Parser(
        prog="bench_distill.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", help="cpu, cuda or cuda:1; default: CUDA if available")
    parser.add_argument("--batch-size", type=int, default=16, help="sequences per step and GPU")
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=10, help="timed steps")
    parser.add_argument("--mixer", default="gated_deltanet")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=SECTIONS,
        default=[section for section in SECTIONS if section != "all_mixers"],
        help="default: all sections except `all_mixers`, which times seven mixers",
    )
    parser.add_argument("--eager", action="store_true", help="disable CUDA graphs")
    parser.add_argument("--sharded", action="store_true", help="under torchrun: shard students with FSDP2")
    parser.add_argument(
        "--shape", choices=SHAPES, default="smollm2-135m", help="tiny: small enough for a CPU"
    )
    parser.add_argument(
        "--teacher",
        help="instead of --shape: hub id, folder or GGUF file of a teacher, or a config.json; its shape is\n"
        "used with random weights",
    )
    parser.add_argument(
        "--naive-batch-size",
        type=int,
        help="sequences of a naive step, if it fits fewer; default: --batch-size",
    )
    parser.add_argument("--out", type=Path, help="folder for table.md and timings.json")
    options = parser.parse_args(arguments)
    process_group = ProcessGroup(options.device)
    bench = Bench(
        LlamaConfig(**SHAPES[options.shape]) if options.teacher is None else teacher_config(options.teacher),
        process_group,
        batch_size=options.batch_size,
        seq_len=options.seq_len,
        steps=options.steps,
        cuda_graphs=not options.eager,
        sharded=options.sharded,
    )
    name = torch.cuda.get_device_name(process_group.device) if bench.bf16 else "CPU"
    results: dict[str, Any] = {"device": name, "versions": package_versions(), "timings": []}
    timings: list[Timing] = []
    differences: list[str] = []

    def report(section: str, value: Any) -> None:
        results[section] = value
        if process_group.is_main:
            last = value[-1] if section == "timings" else value
            print(profile_table(value) if section == "profile" else json.dumps({section: last}), flush=True)
            if options.out is not None:
                write_json(options.out / "timings.json", results)

    if "accuracy" in options.only and process_group.world_size == 1:
        others = [name for name in SHARED_TEACHER_MIXERS if name != options.mixer]
        report("accuracy", check_accuracy(bench, [options.mixer, *others]))
        differences = failures(results["accuracy"])
        _free_memory(bench)
    if "losses" in options.only:
        multiple = 2 * process_group.world_size
        batch_size = options.batch_size - options.batch_size % multiple or multiple
        report("losses", [round(loss, 6) for loss in bench.losses(options.mixer, batch_size, options.steps)])
    for measure in measurements(bench, options.mixer, options.only, options.naive_batch_size):
        started = time.monotonic()
        timings.append(measure())
        _free_memory(bench)
        report("timings", [asdict(timing) for timing in timings])
        if process_group.is_main:
            print(f"  ({time.monotonic() - started:.0f} s)", flush=True)
    if "profile" in options.only and bench.bf16 and process_group.world_size == 1:
        report("profile", _profiled(bench, options.mixer))
    if process_group.is_main:
        text = "\n".join([table(timings), "", *ratios(timings)])
        if options.out is not None:
            profiled = [profile_table(results["profile"])] if "profile" in results else []
            write_text(options.out / "table.md", "\n\n".join([text, *profiled]) + "\n")
        print(text)
    if differences:
        print("the optimized step differs from fp32 torch; the timings are invalid:", *differences, sep="\n")
    return int(bool(differences))


def _profiled(bench: Bench, mixer: str) -> dict[str, Any]:
    """Profile the KD step in eager mode, since a graph replay hides the origin of kernels."""
    bench.cuda_graphs = False
    train_step = bench.train_step(bench.stage("kd"), [mixer])
    batch = bench.global_batch(bench.batch_size, seed=0, batch_size=bench.batch_size)
    for number in range(2):
        train_step(batch, number)
    return profile(lambda: train_step(batch, 5))


def _free_memory(bench: Bench) -> None:
    gc.collect()
    if bench.bf16:
        torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(guarded("bench_distill", main, resumable=False))
