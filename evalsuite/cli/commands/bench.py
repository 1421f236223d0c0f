"""`evalsuite bench`: speed, memory and cache size of checkpoints by context."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.cli.options import add_engine_option, add_model_options, engine_arguments
from evalsuite.foundation.parser import command

if TYPE_CHECKING:
    from evalsuite.foundation.efficiency import EfficiencyRow, Key
    from evalsuite.models.benchmark.random_models import RandomModel
    from evalsuite.models.benchmark.subject import Benchmark
    from evalsuite.models.benchmark.sweep import Sweep


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = command(
        commands,
        "bench",
        help="measure speed, memory and cache size of checkpoints by context",
        example=(
            "  evalsuite bench pocket --contexts 128 256\n"
            "  evalsuite bench ./teacher ./student --contexts 2k 8k 32k --out runs/first\n"
            "  evalsuite bench --random --like SmolLM2-135M --mixer gated_deltanet gated_deltanet+softmax/4 "
            "--out runs/cost"
        ),
    )
    parser.add_argument(
        "checkpoints", nargs="*", metavar="CHECKPOINT", help="hub id, folder, GGUF file or 'pocket'"
    )
    parser.add_argument("--random", action="store_true", help="models of --like with random weights")
    parser.add_argument(
        "--like", metavar="SHAPE", help="a shipped shape (SmolLM2-135M, Qwen3-0.6B, …), or a config.json"
    )
    parser.add_argument(
        "--mixer",
        nargs="+",
        default=[],
        metavar="M",
        help="students of --like: NAME or NAME:preset=P, with softmax in every N-th layer (NAME+softmax/N) "
        "or in those listed (NAME+softmax@0,6,13); the teacher is always measured",
    )
    parser.add_argument(
        "--contexts",
        nargs="+",
        type=context_length,
        metavar="T",
        help="context lengths, e.g. 512 32k; beyond the model's positions as well (default: 512 to 128k; "
        "128 to 512 on a CPU)",
    )
    parser.add_argument(
        "--batch", nargs="+", type=int, default=[1], metavar="B", help="prompts per request (default: 1)"
    )
    parser.add_argument(
        "--peak-contexts",
        nargs="*",
        type=context_length,
        metavar="T",
        help="contexts at which decode batches grow until memory ends (default: 2k 8k 32k 128k on a GPU, "
        "none on a CPU)",
    )
    parser.add_argument("--repeats", type=int, default=3, help="timed prefills up to 32k (default: 3)")
    parser.add_argument(
        "--also",
        nargs="+",
        default=[],
        metavar="ENGINE",
        help="also measure requests in these engines, e.g. transformers (its generate) or vllm",
    )
    parser.add_argument(
        "--also-contexts",
        nargs="+",
        type=context_length,
        default=[2048, 32768],
        metavar="T",
        help="contexts for --also (default: 2k 32k)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="RUN",
        help="run folder; measurements go to its efficiency.jsonl, and existing ones are not repeated",
    )
    parser.add_argument(
        "--from",
        dest="runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="measure nothing: write page and CSV of the measurements of run folders to --out",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="estimate time and memory, and measure nothing"
    )
    add_engine_option(parser, "inference engine")
    add_model_options(parser)
    parser.set_defaults(call=run)


def context_length(text: str) -> int:
    """Parse a number of tokens such as 512 or 32k. Raises ArgumentTypeError for anything else."""
    number, unit = (text[:-1], 1024) if text[-1:].lower() == "k" else (text, 1)
    if not number.isdecimal() or int(number) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of tokens, such as 512 or 32k")
    return int(number) * unit


def run(arguments: argparse.Namespace) -> int:
    """Measure checkpoints, print a table, and write measurements to the run folder if one is given."""
    from evalsuite.evaluation.inference.engines import check_device, resolve_device
    from evalsuite.foundation import ConfigError
    from evalsuite.foundation.efficiency import read_measurements
    from evalsuite.models.benchmark.points import save_measurement
    from evalsuite.models.benchmark.sweep import run_sweep
    from evalsuite.models.checkpoints.precision import split_precision
    from evalsuite.reports.measures.efficiency import efficiency_text

    if arguments.runs:
        return _report(arguments)
    if arguments.random == bool(arguments.checkpoints) or arguments.random != bool(arguments.like):
        raise ConfigError("give checkpoints, or --random --like SHAPE [--mixer M …]")
    if arguments.mixer and not arguments.random:
        raise ConfigError(f"--mixer {arguments.mixer[0]}: only with --random --like SHAPE")
    for path in arguments.checkpoints:
        if settings := split_precision(path)[1]:
            raise ConfigError(
                f"{path}: rounding is simulated and changes neither speed nor memory; leave out '{settings}'"
            )
    check_device(arguments.engine, arguments.device)
    device, dtype = resolve_device(arguments.device, arguments.dtype)
    sweep = _sweep(arguments, on_gpu=device.startswith("cuda"))
    if arguments.dry_run:
        return _dry_run(arguments, sweep, device, dtype)
    if not device.startswith("cuda"):
        print(
            "no GPU: a CPU shows how time and cache grow with the context, not the ratios of a GPU; peak "
            "memory, energy and the batch that memory holds are not measured"
        )
    stored: dict[Key, EfficiencyRow] = {}
    if arguments.out is not None:
        stored = {each.key: each for each in read_measurements(arguments.out)}
    found: list[EfficiencyRow] = []

    def record(measured: "EfficiencyRow") -> None:
        print(progress_line(measured), flush=True)
        if arguments.out is not None:
            save_measurement(arguments.out, measured)

    for open_model in _models(arguments, device, dtype):
        with closing(open_model()) as opened:
            for number, benchmark in enumerate(opened.benchmarks):
                own = sweep if number == 0 else _also_sweep(sweep, arguments)
                found += run_sweep(benchmark, own, stored, record)
    print(efficiency_text(found))
    if arguments.out is not None:
        print(f"written to {arguments.out / 'efficiency.jsonl'}")
    return 0


def _report(arguments: argparse.Namespace) -> int:
    """Write page and CSV of stored measurements."""
    from evalsuite.foundation import ConfigError
    from evalsuite.reports.page.standalone import write_efficiency

    if arguments.checkpoints or arguments.random or arguments.out is None:
        raise ConfigError("--from RUN … takes --out DIR, and no checkpoints: nothing is measured")
    for path in write_efficiency(arguments.runs, arguments.out):
        print(f"written to {path}")
    return 0


class Opened:
    """A loaded model, with what measures it in each engine, and how to let it go."""

    def __init__(self, benchmarks: list["Benchmark"], close: Callable[[], None]) -> None:
        self.benchmarks = benchmarks
        self._close = close

    def close(self) -> None:
        """Free the model."""
        last = self.benchmarks[0]
        self.benchmarks = []
        self._close()
        last.release()


def _models(arguments: argparse.Namespace, device: str, dtype: str) -> Iterator[Callable[[], Opened]]:
    """How to open each model; nothing is loaded before its turn."""
    if arguments.random:
        from evalsuite.models.benchmark.random_models import random_models

        _only_in_process(arguments)
        for model in random_models(arguments.like, arguments.mixer):
            yield partial(_open_random, model, arguments, device, dtype)
        return
    from evalsuite.evaluation.inference.engines import engine_factory
    from evalsuite.models.engines import engine_type

    engine_args = engine_arguments(arguments)
    names = [arguments.engine, *arguments.also]
    makers: dict[str, Any] = {
        name: engine_factory(
            name,
            device=arguments.device,
            dtype=arguments.dtype,
            trust_remote_code=arguments.trust_remote_code,
            arguments=engine_args if name == arguments.engine else {},
        )
        for name in names
    }
    # Refuse what an engine cannot serve before measuring anything.
    opened = {
        (name, path): make(path, None)
        for name, make in makers.items()
        if engine_type(name, {}).opens_unloaded
        for path in arguments.checkpoints
    }
    for path in arguments.checkpoints:
        yield partial(_open_checkpoint, path, makers, opened)


def _open_checkpoint(path: str, makers: dict[str, Any], opened: dict[Any, Any]) -> Opened:
    engines = [opened.get((name, path)) or make(path, None) for name, make in makers.items()]

    def close() -> None:
        for engine in engines:
            engine.close()

    return Opened([engine.benchmark() for engine in engines], close)


def _open_random(model: "RandomModel", arguments: argparse.Namespace, device: str, dtype: str) -> Opened:
    from evalsuite.models.benchmark.random_models import build
    from evalsuite.models.inference.torch.benchmark import TorchBenchmark
    from evalsuite.models.inference.torch.model_runner import ModelRunner
    from evalsuite.models.inference.transformers.benchmark import GenerateBenchmark

    checkpoint = build(model, device=device, dtype=dtype)
    benchmarks: list[Benchmark] = []
    for name in dict.fromkeys([arguments.engine, *arguments.also]):
        if name == "transformers":
            benchmarks.append(GenerateBenchmark(checkpoint, random_weights=True))
        else:
            benchmarks.append(TorchBenchmark(ModelRunner(checkpoint.model), checkpoint, random_weights=True))
    return Opened(benchmarks, lambda: None)


def _only_in_process(arguments: argparse.Namespace) -> None:
    from evalsuite.foundation import ConfigError

    for name in (arguments.engine, *arguments.also):
        if name not in ("torch", "transformers"):
            raise ConfigError(
                f"--engine {name} reads weights from a folder, which --random does not write; save the model "
                "and give its folder, or choose torch or transformers"
            )


def _sweep(arguments: argparse.Namespace, *, on_gpu: bool) -> "Sweep":
    from evalsuite.models.benchmark.sweep import CONTEXTS, CPU_CONTEXTS, PEAK_CONTEXTS, Sweep

    peaks = arguments.peak_contexts
    return Sweep(
        contexts=tuple(arguments.contexts or (CONTEXTS if on_gpu else CPU_CONTEXTS)),
        batches=tuple(arguments.batch),
        peak_contexts=tuple((PEAK_CONTEXTS if on_gpu else ()) if peaks is None else peaks),
        repeats=arguments.repeats,
        most_sequences=None if on_gpu else 8,
    )


def _also_sweep(sweep: "Sweep", arguments: argparse.Namespace) -> "Sweep":
    return replace(sweep, contexts=tuple(arguments.also_contexts), batches=(1,), peak_contexts=())


def progress_line(measured: "EfficiencyRow") -> str:
    """One line for a new measurement."""
    where = f"{measured.label}, {measured.engine}: {measured.kind} of {measured.context:,} × {measured.batch}"
    if measured.status != "ok":
        return f"{where}: {measured.status.replace('_', ' ')} ({measured.detail})"
    speed = measured.decode_tokens_per_second
    return f"{where}: {_first_token(measured)}decode {'–' if speed is None else f'{speed:,.0f}'} tokens/s"


def _first_token(measured: "EfficiencyRow") -> str:
    """Time to the first token, and the FLOP/s of the prefill where they are counted."""
    from evalsuite.models.decoder.cost import format_flops

    tokens = measured.prefill_tokens_per_second
    if measured.ttft_ms is None or tokens is None:
        return ""
    flops = measured.prefill_flops
    rate = "" if flops is None else f" at {format_flops(tokens * flops, measured.device)}"
    return f"first token {measured.ttft_ms.median:,.1f} ms{rate}, "


def _dry_run(arguments: argparse.Namespace, sweep: "Sweep", device: str, dtype: str) -> int:
    """Print the expected time and memory of every model; no weights are loaded."""
    import torch

    from evalsuite.models.benchmark.estimate import estimate, probe
    from evalsuite.models.benchmark.gpu import device_name
    from evalsuite.models.benchmark.random_models import random_models
    from evalsuite.models.benchmark.subject import Subject
    from evalsuite.models.checkpoints.load import describe_checkpoint
    from evalsuite.models.decoder.cost import format_flops

    where, wanted = torch.device(device), getattr(torch, dtype)
    name = device_name(where)
    rates = probe(where, wanted)
    if arguments.random:
        named = [(each.label, each.config) for each in random_models(arguments.like, arguments.mixer)]
    else:
        infos = [describe_checkpoint(path, shares_tokenizer=True) for path in arguments.checkpoints]
        named = [(info.label, info.config) for info in infos]
    print(f"{'model':<44}{'points':>7}{'seconds':>9}{'peak GiB':>10}")
    total = 0.0
    for label, config in named:
        subject = Subject(
            label=label,
            weights_id="",
            teacher=None,
            engine=arguments.engine,
            versions="",
            device=device,
            dtype=wanted,
            config=config,
        )
        found = [estimate(subject, point, rates) for point in sweep.all_points()]
        seconds = sum(each.seconds for each in found)
        total += seconds
        most = max(each.memory_bytes for each in found) / 2**30
        print(f"{label:<44}{len(found):>7}{seconds:>9,.0f}{most:>10,.1f}")
    print(
        f"about {total:,.0f} s in all at {format_flops(rates.flops, name)} and {rates.bytes / 1e9:,.4g} GB/s "
        "(probed); decode batches up to memory are left out of the peak"
    )
    return 0
