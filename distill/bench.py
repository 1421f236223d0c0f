"""How fast a stage trains: `evalsuite bench distill`, or `python -m evalsuite.distill.bench`.

Times the trainer's own steps on random tokens, beside the naive knowledge-distillation step (teacher and
student produce all logits, which are then compared in fp32), in one process and one run, so that the
ratios mean something on any device. First the fast step is compared with plain fp32 torch, and last the
profiler says where the time of a step goes. Under `torchrun` every GPU takes `--rows` rows.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from evalsuite.distill.bench_check import check, failures
from evalsuite.distill.bench_profile import profile, profile_table
from evalsuite.distill.bench_steps import Bench, Timing
from evalsuite.distill.lineage import versions
from evalsuite.distill.parallel import Parallel
from evalsuite.foundation import write_json, write_text

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
TINY = {
    **SMOLLM2_135M,
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2}
FOUR = ("linear_attention", "retnet", "gla", "gated_deltanet")
SEVEN = (*FOUR, "deltanet", "kda", "mlstm")
PARTS = ("check", "naive", "kd", "align", "four", "each", "losses", "profile")


def measurements(bench: Bench, mixer: str, parts: Sequence[str]) -> Iterator[Callable[[], Timing]]:
    """What is timed, one call each."""
    rows = bench.rows
    if "naive" in parts:
        yield lambda: bench.naive_step(mixer, autocast=True)
        if bench.bf16:
            yield lambda: bench.naive_step(mixer, autocast=False)
    if "kd" in parts:
        sizes = {rows} if bench.parallel.world > 1 else {rows, max(1, rows // 2), max(1, rows // 4)}
        for at_once in sorted(sizes, reverse=True):
            yield partial(bench.trainer_step, "kd", [mixer], at_once)
    if "align" in parts:
        yield lambda: bench.trainer_step("attention_output", [mixer], rows)
    if "four" in parts:
        for one in FOUR:
            if one != mixer or "align" not in parts:
                yield partial(bench.trainer_step, "attention_output", [one], rows)
        yield lambda: bench.trainer_step("attention_output", FOUR, rows)
    if "each" in parts:
        for one in SEVEN:
            yield partial(bench.trainer_step, "kd", [one], rows)
            yield partial(bench.trainer_step, "attention_output", [one], rows)


def table(timings: Sequence[Timing]) -> str:
    """The timings as Markdown."""
    lines = [
        "| step | GPUs | rows × length | at a time | tokens/s per student | peak GB | reserved GB | MFU |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for at in timings:
        peak = "–" if at.peak_gigabytes is None else f"{at.peak_gigabytes:.1f}"
        reserved = "–" if at.reserved_gigabytes is None else f"{at.reserved_gigabytes:.1f}"
        mfu = "–" if at.mfu is None else f"{at.mfu:.1%}"
        lines.append(
            f"| {at.what} | {at.gpus} | {at.rows} × {at.length} | {at.micro_batch} "
            f"| {at.tokens_per_second:,.0f} | {peak} | {reserved} | {mfu} |"
        )
    return "\n".join(lines)


def ratios(timings: Sequence[Timing]) -> list[str]:
    """What the timings say of each other: against the faster naive step, and of shared teacher forwards."""
    lines = []
    naive = [at for at in timings if at.what.startswith("naive")]
    ours = [at for at in timings if at.what.startswith("kd ") and at.students == 1]
    if naive and ours:
        best = max(naive, key=lambda at: at.tokens_per_second)
        for at in ours:
            faster = at.tokens_per_second / best.tokens_per_second
            line = f"kd, {at.micro_batch} rows at a time: {faster:.2f} × naive"
            if at.peak_gigabytes is not None and best.peak_gigabytes:
                line += f", {at.peak_gigabytes / best.peak_gigabytes:.2f} of its memory"
            lines.append(line)
    aligning = [at for at in timings if at.what.startswith("attention")]
    alone = {at.what.split()[-1]: at for at in aligning if at.students == 1}
    for at in timings:
        if at.students > 1 and all(mixer in alone for mixer in FOUR):
            separately = sum(1 / alone[mixer].tokens_per_second for mixer in FOUR)
            lines.append(
                f"{at.students} students from one teacher forward: "
                f"{separately * at.tokens_per_second:.2f} × as fast as one after the other"
            )
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurements and print the tables."""
    parser = argparse.ArgumentParser(
        prog="evalsuite bench distill", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", help="cpu, cuda, cuda:1; default: CUDA if there is one")
    parser.add_argument("--rows", type=int, default=16, help="sequences a step on each GPU")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=10, help="steps that are timed")
    parser.add_argument("--mixer", default="gated_deltanet")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PARTS,
        default=[part for part in PARTS if part != "each"],
        help="default: all but `each`, which times seven mixers",
    )
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    parser.add_argument("--sharded", action="store_true", help="under torchrun: FSDP2 students")
    parser.add_argument("--tiny", action="store_true", help="a shape that a CPU can time")
    parser.add_argument("--out", type=Path, help="folder for table.md and timings.json")
    given = parser.parse_args(arguments)
    parallel = Parallel(given.device)
    bench = Bench(
        TINY if given.tiny else SMOLLM2_135M,
        parallel,
        rows=given.rows,
        length=given.length,
        steps=given.steps,
        graphs=not given.eager,
        sharded=given.sharded,
    )
    name = torch.cuda.get_device_name(parallel.device) if bench.bf16 else "CPU"
    written: dict[str, Any] = {"device": name, "versions": versions(), "timings": []}
    timings: list[Timing] = []
    wrong: list[str] = []

    def keep(what: str, value: Any) -> None:
        written[what] = value
        if parallel.main:
            last = value[-1] if what == "timings" else value
            print(profile_table(value) if what == "profile" else json.dumps({what: last}), flush=True)
            if given.out is not None:
                write_json(given.out / "timings.json", written)

    if "check" in given.only and parallel.world == 1:
        keep("check", check(bench, [given.mixer, *(one for one in FOUR if one != given.mixer)]))
        wrong = failures(written["check"])
        _forget(bench)
    if "losses" in given.only:
        rows = given.rows - given.rows % (2 * parallel.world) or 2 * parallel.world
        keep("losses", [round(loss, 6) for loss in bench.losses(given.mixer, rows, given.steps)])
    for measure in measurements(bench, given.mixer, given.only):
        started = time.monotonic()
        timings.append(measure())
        _forget(bench)
        keep("timings", [asdict(at) for at in timings])
        if parallel.main:
            print(f"  ({time.monotonic() - started:.0f} s)", flush=True)
    if "profile" in given.only and bench.bf16 and parallel.world == 1:
        keep("profile", _profiled(bench, given.mixer))
    if parallel.main:
        text = "\n".join([table(timings), "", *ratios(timings)])
        if given.out is not None:
            profiled = [profile_table(written["profile"])] if "profile" in written else []
            write_text(given.out / "table.md", "\n\n".join([text, *profiled]) + "\n")
        print(text)
    if wrong:
        raise SystemExit(
            "\n".join(["the fast step is not the exact one, and no figure above counts:", *wrong])
        )


def _profiled(bench: Bench, mixer: str) -> dict[str, Any]:
    """The KD step under the profiler, run as it is, since a graph's replay hides which kernels are whose."""
    bench.graphs = False
    stepper = bench.stepper(bench.stage("kd"), [mixer])
    data = bench.step_data(bench.rows, seed=0, rows=bench.rows)
    for number in range(2):
        stepper.step(data, number)
    return profile(lambda: stepper.step(data, 5))


def _forget(bench: Bench) -> None:
    gc.collect()
    if bench.bf16:
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
