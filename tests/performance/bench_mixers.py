"""Time and memory of each mixer: `python tests/performance/bench_mixers.py --device cpu|cuda [--out FOLDER]`.

One layer with the shape of SmolLM2-135M (hidden 576, 9 query heads on 3 key heads of 64), forward and
backward. On CUDA in bfloat16 at [8, 2048], with the kernel's name, its error against the torch backend, and
the layer's error on both backends against float32. On a CPU in float32 on one thread at lengths 512 to 8192,
and the chunked recurrence against the naive one, which steps token by token.
"""

import argparse
import copy
import csv
import io
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel, LlamaConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from evalsuite.cli.exit_codes import guarded
from evalsuite.foundation import write_text
from evalsuite.foundation.parser import Parser
from evalsuite.models.mixers import MIXERS, AttentionSpan, RecurrentMixer, make_mixer
from evalsuite.models.ops.dispatch import KernelPolicy, kernel_policy
from evalsuite.models.ops.recurrence import (
    RecurrenceInputs,
    compute_recurrence,
    fla_backend,
    naive_recurrent,
)
from tests.parity.kernel_accuracy import relative_error, relative_errors

HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 576, 9, 3, 64
LENGTHS = (512, 1024, 2048, 4096, 8192)
RECURRENT = [name for name, kind in MIXERS.items() if issubclass(kind, RecurrentMixer)]

Row = dict[str, str]


def make_layer(name: str, device: str, dtype: torch.dtype) -> nn.Module:
    """A newly initialized mixer in a layer of the benchmark's shape."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        intermediate_size=8,
        num_hidden_layers=1,
        vocab_size=8,
    )
    attention = AutoModel.from_config(config, attn_implementation="sdpa").layers[0].self_attn
    mixer = make_mixer(name, attention, {}, layer=0, norm_eps=1e-5, window=None)
    if isinstance(mixer, RecurrentMixer):
        mixer.reset_parameters()
        with torch.no_grad():
            for parameter in mixer.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
    return mixer.to(device, dtype)


def rotary(length: int, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin [1, T, D]."""
    rates = 10000.0 ** -(torch.arange(0, HEAD_DIM, 2, device=device) / HEAD_DIM)
    angles = torch.arange(length, device=device)[:, None] * rates
    angles = torch.cat([angles, angles], -1).unsqueeze(0)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def forward_backward(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Output and gradient of the input under a fixed loss."""
    x = x.detach().requires_grad_()
    layer.zero_grad(set_to_none=True)
    length = x.shape[1]
    out, _ = layer(
        x,
        position_embeddings=rotary(length, str(x.device), x.dtype),
        attention_mask=span_mask(length, layer.span, x.device),
    )
    (out.float() * torch.linspace(-1, 1, out.shape[-1], device=x.device)).sum().backward()
    assert x.grad is not None
    return out.detach(), x.grad


def span_mask(length: int, span: AttentionSpan | None, device: torch.device) -> Tensor | None:
    """Attention mask of a sliding-window layer: bool [1, 1, T, T]; None for plain causal attention."""
    if span is None or span.window is None:
        return None
    places = torch.arange(length, device=device)
    return span.visible(places[:, None], places)[None, None]


def seconds(call: Callable[[], object], repeats: int, cuda: bool) -> float:
    """Median time of `call` after one warm-up: wall time on CUDA, processor time of one thread on a CPU.

    Processor time is independent of other processes on the machine.
    """
    clock = time.perf_counter if cuda else time.process_time
    call()
    times = []
    for _ in range(repeats):
        if cuda:
            torch.cuda.synchronize()
        start = clock()
        call()
        if cuda:
            torch.cuda.synchronize()
        times.append(clock() - start)
    return statistics.median(times)


def on_cuda(name: str) -> Row:
    """One row of the CUDA table, in bfloat16 at [8, 2048]."""
    layer = make_layer(name, "cuda", torch.bfloat16)
    x = torch.randn(8, 2048, HIDDEN, device="cuda", dtype=torch.bfloat16)
    row = {"mixer": name, "kernel": "scaled_dot_product_attention"}
    torch_ms = ""
    if isinstance(layer, RecurrentMixer):
        row |= kernel_errors(layer, x[:2]) | layer_errors(layer, x[:2])
        with kernel_policy("torch"):
            torch_ms = f"{1000 * seconds(partial(forward_backward, layer, x), 3, cuda=True):.2f}"
    layer.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    allocated = torch.cuda.memory_allocated()
    elapsed = seconds(partial(forward_backward, layer, x), 20, cuda=True)
    row["forward_backward_ms"] = f"{1000 * elapsed:.2f}"
    row["peak_memory_MiB"] = f"{(torch.cuda.max_memory_allocated() - allocated) / 2**20:.0f}"
    row["forward_backward_ms_torch"] = torch_ms
    return row


def kernel_errors(layer: RecurrentMixer, x: Tensor) -> Row:
    """Errors of a mixer's kernel against the torch backend, on the mixer's own recurrence inputs."""
    with torch.no_grad():
        inputs = layer.prepare(x, rotary(x.shape[1], str(x.device), x.dtype)).inputs
    erase = inputs.erase
    tensors = {
        "q": inputs.q,
        "k": inputs.k,
        "v": inputs.v,
        "log_decay": inputs.log_decay,
        "beta": inputs.beta,
        "read": None if erase is None else erase.read,
        "along": None if erase is None else erase.along,
    }
    if erase is None:
        kernel = fla_backend.kernel_for(
            inputs.decay_shape, delta=inputs.beta is not None, dtype=inputs.v.dtype
        )
    elif inputs.v.dtype == torch.float32:
        # The reference itself.
        return {"kernel": "torch chunked"}
    else:
        kernel = fla_backend.DPLR
    constants = [name for name, value in tensors.items() if value is None or value.dim() == 1]
    others = {"scale": layer.scale, **{name: tensors.pop(name) for name in constants}}
    state = torch.zeros(x.shape[0], *layer.state_shapes()["recurrent"], device=x.device)
    weights = torch.randn_like(inputs.v, dtype=torch.float32), state
    found = relative_errors(
        partial(fla_backend.run, kernel), {n: t for n, t in tensors.items() if t is not None}, others, weights
    )
    gradients = {name: value for name, value in found.items() if name not in ("o", "state")}
    worst = max(gradients, key=lambda name: gradients[name])
    return {
        "kernel": kernel.name,
        "kernel_output_error": f"{found['o']:.1e}",
        "kernel_worst_gradient_error": f"{gradients[worst]:.1e} ({worst})",
    }


def layer_errors(layer: RecurrentMixer, x: Tensor) -> Row:
    """Errors of the layer in bfloat16 on both backends, against the layer in float32."""
    exact = copy.deepcopy(layer).float()
    with kernel_policy("torch"):
        expected, _ = forward_backward(exact, x.float())
    gradients = {name: p.grad for name, p in exact.named_parameters() if p.grad is not None}
    row = {}
    policies: tuple[KernelPolicy, ...] = ("auto", "torch")
    for policy in policies:
        with kernel_policy(policy):
            found, _ = forward_backward(layer, x)
        column = "torch" if policy == "torch" else "fla"
        worst = {
            name: relative_error(p.grad, gradients[name])
            for name, p in layer.named_parameters()
            if p.grad is not None
        }
        name = max(worst, key=lambda name: worst[name])
        row[f"layer_error_{column}"] = f"{relative_error(found, expected):.1e}"
        row[f"worst_weight_gradient_error_{column}"] = f"{worst[name]:.1e} ({name})"
    return row


def on_cpu(name: str, lengths: Sequence[int], repeats: int) -> Row:
    """Milliseconds per 1,000 tokens by length: constant where the cost is linear."""
    layer = make_layer(name, "cpu", torch.float32)
    row = {"mixer": name}
    for length in lengths:
        x = torch.randn(1, length, HIDDEN)
        elapsed = seconds(partial(forward_backward, layer, x), repeats, cuda=False)
        row[f"ms_per_1000_tokens_at_{length}"] = f"{1e6 * elapsed / length:.0f}"
    return row


def chunked_against_naive(decay: str, delta: bool, length: int, repeats: int) -> Row:
    """Forward and backward of the recurrence alone, [1, T, 9, 64] float32."""
    case = recurrence_inputs(decay, delta, 1, length)
    chunked = seconds(partial(_recur, compute_recurrence, case), repeats, cuda=False)
    naive = seconds(partial(_recur, naive_recurrent, case), 1, cuda=False)
    return {
        "decay": decay,
        "rule": "delta" if delta else "additive",
        "chunked_ms": f"{1000 * chunked:.0f}",
        "naive_ms": f"{1000 * naive:.0f}",
        "times_faster": f"{naive / chunked:.1f}",
    }


def recurrence_inputs(decay: str, delta: bool, rows: int, length: int) -> dict[str, Tensor | None]:
    """q, k, v, log_decay and beta, [rows, length, 9, 64], all with gradients."""
    shape = (rows, length, HEADS, HEAD_DIM)
    case: dict[str, Tensor | None] = {
        name: functional.normalize(torch.randn(shape), dim=-1).requires_grad_() for name in ("q", "k", "v")
    }
    logits = {"none": None, "scalar": torch.randn(shape[:3]), "channel": torch.randn(shape)}[decay]
    case["log_decay"] = None if logits is None else functional.logsigmoid(logits + 4).requires_grad_()
    case["beta"] = torch.rand(shape[:3]).requires_grad_() if delta else None
    return case


def _recur(op: Callable[[RecurrenceInputs], tuple[Tensor, Tensor]], case: dict[str, Tensor | None]) -> None:
    o, _ = op(RecurrenceInputs(**case))  # type: ignore[arg-type]
    o.sum().backward()


def markdown(rows: Sequence[Row]) -> str:
    """Markdown table; missing cells are empty."""
    header = list(dict.fromkeys(key for row in rows for key in row))
    lines = [header, ["---"] * len(header), *([row.get(key, "") for key in header] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def to_csv(rows: Sequence[Row]) -> str:
    """CSV table; missing cells are empty."""
    header = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, header, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


class Tables:
    """Rows by table. Adding a row prints it and rewrites its table (CSV and Markdown)."""

    def __init__(self, out: Path | None) -> None:
        self.out = out
        self.rows: dict[str, list[Row]] = {}

    def add(self, table: str, row: Row) -> None:
        rows = self.rows.setdefault(table, [])
        rows.append(row)
        print(f"{table}: " + ", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        if self.out is not None:
            write_text(self.out / f"{table}.csv", to_csv(rows))
            write_text(self.out / f"{table}.md", markdown(rows))


def run_mixers(
    device: Literal["cpu", "cuda"], out: Path | None, *, names: Sequence[str] = (), repeats: int = 3
) -> dict[str, list[Row]]:
    """Measure mixers (all by default), print, and write `<table>.csv` and `<table>.md` under `out`.

    On a CPU torch is limited to one thread.
    """
    tables = Tables(out)
    if device == "cuda":
        for name in names or MIXERS:
            tables.add("mixers_cuda", on_cuda(name))
        return tables.rows
    torch.set_num_threads(1)
    for name in names or RECURRENT:
        tables.add("mixers_cpu", on_cpu(name, LENGTHS, repeats))
    if not names:
        for decay in ("none", "scalar", "channel"):
            for delta in (False, True):
                row = chunked_against_naive(decay, delta, 2048, repeats)
                tables.add("chunked_against_naive_cpu", row)
    return tables.rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and measure."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--mixer", action="append", choices=sorted(MIXERS), help="only this one (repeatable)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder for the tables (CSV and Markdown)")
    options = parser.parse_args(arguments)
    run_mixers(options.device, options.out, names=options.mixer or (), repeats=options.repeats)
    return 0


if __name__ == "__main__":
    sys.exit(guarded("bench_mixers", main, resumable=False))
