"""What bounds a step of decoding in vLLM: its time, that of its kernels, and that of the host's functions.

    EVALSUITE_VLLM_PYTHON=… python reports/studies/throughput/vllm_step.py FOLDER … --out FILE [--host]

256 sequences of 32 tokens are continued, and the time of a step is the difference of two lengths. On a GPU
vLLM runs with its defaults, except that only steps of 256 sequences are captured in a CUDA graph; then its
profiler records the kernels of 64 steps, and the in-process engine follows. With `--host`, also on a CPU,
vLLM runs in one process, eagerly, and what its host does in each step is timed instead.
"""

import gzip
import importlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from argparse import RawDescriptionHelpFormatter
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

SEQUENCES, PROMPT, SHORT, LONG, REPEATS, PROFILED = 256, 32, 33, 161, 6, 64
HOST = {
    "vllm.v1.core.sched.scheduler:Scheduler": ("schedule", "update_from_output"),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner": (
        "_update_states",
        "_prepare_inputs",
        "_build_attention_metadata",
        "_bookkeeping_sync",
    ),
}
"""Functions that the host calls once a step, none of them by another."""


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    # vLLM's Python runs this file as well, and lacks what evalsuite needs.
    from evalsuite.foundation.parser import Parser

    parser = Parser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="+", type=Path)
    parser.add_argument("--arguments", type=json.loads, default={}, help="arguments of vllm.LLM, JSON")
    parser.add_argument("--host", action="store_true", help="time the host's functions")
    parser.add_argument("--out", required=True, type=Path)
    options = parser.parse_args()
    rows = []
    for folder in options.checkpoints:
        row = {"checkpoint": folder.name, "arguments": options.arguments}
        row |= in_vllm(folder.resolve(), options.arguments, options.host)
        if not options.host:
            row["in_process_step_ms"] = in_process(folder)
        rows.append(row)
    options.out.write_text(json.dumps(rows, indent=1) + "\n")


def step_times(seconds: Callable[[int], float]) -> list[float]:
    """Milliseconds of a step, ascending, given the seconds that responses of a length take."""
    seconds(LONG)
    pairs = [(seconds(SHORT), seconds(LONG)) for _ in range(REPEATS)]
    return sorted(round((long - short) / (LONG - SHORT) * 1e3, 3) for short, long in pairs)


def prompts(vocab_size: int) -> list[list[int]]:
    draw = random.Random(0)
    return [[draw.randrange(vocab_size) for _ in range(PROMPT)] for _ in range(SEQUENCES)]


def in_process(folder: Path) -> list[float]:
    """Step times of the in-process engine."""
    from evalsuite.models import load_checkpoint
    from evalsuite.models.inference.requests import GenerateRequest, SamplingParams
    from evalsuite.models.inference.torch.engine import TorchEngine

    checkpoint = load_checkpoint(str(folder), dtype="bfloat16", device="cuda")
    engine = TorchEngine(checkpoint, max_length=2048)
    engine.eos_ids = frozenset()
    requests = [
        GenerateRequest(tuple(prompt), SamplingParams(LONG))
        for prompt in prompts(checkpoint.model.config.get_text_config().vocab_size)
    ]

    def seconds(tokens: int) -> float:
        started = time.perf_counter()
        each = [replace(request, sampling=SamplingParams(tokens)) for request in requests]
        assert all(len(response.tokens) == tokens for _, response in engine.generate(each))
        return time.perf_counter() - started

    return step_times(seconds)


def in_vllm(checkpoint: Path, arguments: dict[str, Any], host: bool) -> dict[str, Any]:
    """Start vLLM for a checkpoint and summarise what it wrote."""
    from evalsuite.models.inference.vllm.process import find_python, vendor_plugin

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("plugin", "trace"):
            (folder / part).mkdir()
        environment = {**os.environ, "PYTHONPATH": str(vendor_plugin(folder / "plugin"))}
        if host:
            environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        command = [find_python(), str(Path(__file__).resolve()), "--inside"]
        command += [str(checkpoint), str(folder), json.dumps(arguments), str(int(host))]
        subprocess.run(command, env=environment, cwd=folder, check=True)
        found: dict[str, Any] = json.loads((folder / "found.json").read_text())
        kernels = {} if host else traced_kernels(folder / "trace")
    if kernels:
        found["kernel_ms"] = round(sum(spent for spent, _ in kernels.values()) / PROFILED, 3)
        found["kernels_per_step"] = round(sum(count for _, count in kernels.values()) / PROFILED, 1)
        largest = sorted(kernels.items(), key=lambda item: -item[1][0])[:12]
        found["largest_kernels_ms"] = {key: round(spent / PROFILED, 3) for key, (spent, _) in largest}
    return found


def inside(checkpoint: str, folder: Path, arguments: dict[str, Any], host: bool) -> None:
    """The measurements, in vLLM's Python."""
    import torch
    import vllm

    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    if host:
        arguments = {"enforce_eager": True, **arguments}
    else:
        profiler = {"profiler": "torch", "torch_profiler_with_stack": False}
        profiler["torch_profiler_dir"] = str(folder / "trace")
        arguments = {"cudagraph_capture_sizes": [SEQUENCES], "profiler_config": profiler, **arguments}
    engine = vllm.LLM(
        model=checkpoint,
        max_model_len=2048,
        max_num_seqs=SEQUENCES,
        enable_prefix_caching=False,
        gpu_memory_utilization=0.5,
        **arguments,
    )
    texts = [{"prompt_token_ids": prompt} for prompt in prompts(engine.model_config.get_vocab_size())]

    def seconds(tokens: int) -> float:
        sampling = vllm.SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, detokenize=False)
        started = time.perf_counter()
        engine.generate(texts, sampling, use_tqdm=False)
        return time.perf_counter() - started

    found: dict[str, Any] = {"vllm": vllm.__version__}
    if host:
        seconds(SHORT)
        spent = timed_functions()
        seconds(SHORT)
        before = dict(spent)
        seconds(PROFILED + SHORT)
        # What the shorter run took, its prefill included, is taken away.
        found["host_ms"] = {
            name: round((value - 2 * before[name]) / PROFILED * 1e3, 3) for name, value in spent.items()
        }
    else:
        found["vllm_step_ms"] = step_times(seconds)
        engine.start_profile()
        seconds(PROFILED)
        engine.stop_profile()
    (folder / "found.json").write_text(json.dumps(found))


def timed_functions() -> dict[str, float]:
    """Time all further calls of `HOST`: seconds by function, which grow."""
    spent: dict[str, float] = defaultdict(float)

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args, **named)
            finally:
                spent[name] += time.perf_counter() - started

        return call

    for owner, names in HOST.items():
        module, _, kind = owner.partition(":")
        cls = getattr(importlib.import_module(module), kind)
        for name in names:
            setattr(cls, name, timed(name, getattr(cls, name)))
    return spent


def traced_kernels(folder: Path) -> dict[str, tuple[float, int]]:
    """Milliseconds and number of calls by kernel, in all traces."""
    found: dict[str, tuple[float, int]] = {}
    for path in folder.rglob("*.json*"):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for event in json.loads(text)["traceEvents"]:
            if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
                spent, count = found.get(event["name"], (0.0, 0))
                found[event["name"]] = (spent + event["dur"] / 1e3, count + 1)
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        inside(sys.argv[2], Path(sys.argv[3]), json.loads(sys.argv[4]), sys.argv[5] == "1")
    else:
        main()
