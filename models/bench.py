"""What each mixer costs: `python -m evalsuite.models.bench mixers --device cpu|cuda [--out FOLDER]`.

One layer of the shape of SmolLM2-135M (hidden 576, 9 query heads on 3 key heads of 64), forward and backward.
On CUDA in bfloat16 at [8, 2048], with the kernel that ran and its error against the torch backend. On a CPU
in float32 on one thread over lengths 512 to 8192, and the chunked recurrence against stepping token by token.
"""

import argparse
import csv
import io
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel, LlamaConfig

from evalsuite.foundation import write_text
from evalsuite.models.mixers import MIXERS, Mixer, make_mixer
from evalsuite.models.recurrence import kernels_used, recurrence, set_backend, stepwise

HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 576, 9, 3, 64
RECURRENT = [name for name, kind in MIXERS.items() if issubclass(kind, Mixer)]

Row = dict[str, str]


def make_layer(name: str, device: str, dtype: torch.dtype) -> nn.Module:
    """One mixer as it starts, in a fresh layer of the benchmark's shape."""
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
    if isinstance(mixer, Mixer):
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
    out, _ = layer(x, position_embeddings=rotary(x.shape[1], str(x.device), x.dtype), attention_mask=None)
    (out.float() * torch.linspace(-1, 1, out.shape[-1], device=x.device)).sum().backward()
    assert x.grad is not None
    return out.detach(), x.grad


def seconds(call: Callable[[], object], repeats: int, cuda: bool) -> float:
    """Median time of `call` after one warm-up: wall time on CUDA, processor time of one thread on a CPU.

    Processor time does not count what other processes on the machine take.
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


def error(found: Tensor, wanted: Tensor) -> float:
    """Relative error in the Frobenius norm."""
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


def on_cuda(names: Sequence[str]) -> list[Row]:
    """The published table."""
    rows = []
    for name in names:
        layer = make_layer(name, "cuda", torch.bfloat16)
        x = torch.randn(8, 2048, HIDDEN, device="cuda", dtype=torch.bfloat16)
        row = {"mixer": name, "kernel": "scaled_dot_product_attention"}
        if isinstance(layer, Mixer):
            set_backend("fla")
            found = forward_backward(layer, x[:2])
            gradients = {n: p.grad.clone() for n, p in layer.named_parameters() if p.grad is not None}
            row["kernel"] = list(kernels_used().values())[-1]
            set_backend("torch")
            wanted = forward_backward(layer, x[:2])
            worst = max(
                error(gradients[n], p.grad) for n, p in layer.named_parameters() if p.grad is not None
            )
            row |= {
                "output_error": f"{error(found[0], wanted[0]):.1e}",
                "input_gradient_error": f"{error(found[1], wanted[1]):.1e}",
                "worst_weight_gradient_error": f"{worst:.1e}",
            }
            set_backend("fla")
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        taken = seconds(partial(forward_backward, layer, x), 20, cuda=True)
        row["forward_backward_ms"] = f"{1000 * taken:.2f}"
        row["peak_memory_MiB"] = f"{(torch.cuda.max_memory_allocated() - held) / 2**20:.0f}"
        rows.append(row)
        set_backend("auto")
    return rows


def on_cpu(names: Sequence[str], lengths: Sequence[int], repeats: int) -> list[Row]:
    """Milliseconds per 1,000 tokens by length: constant where the cost is linear."""
    rows = []
    for name in names:
        layer = make_layer(name, "cpu", torch.float32)
        row = {"mixer": name}
        for length in lengths:
            x = torch.randn(1, length, HIDDEN)
            taken = seconds(partial(forward_backward, layer, x), repeats, cuda=False)
            row[f"ms_per_1000_tokens_at_{length}"] = f"{1e6 * taken / length:.0f}"
        rows.append(row)
    return rows


def chunked_against_stepping(length: int, repeats: int) -> list[Row]:
    """Forward and backward of the recurrence alone, [1, T, 9, 64] float32."""
    rows = []
    for decay in ("none", "scalar", "channel"):
        for delta in (False, True):
            shape = (1, length, HEADS, HEAD_DIM)
            q, k, v = (functional.normalize(torch.randn(shape), dim=-1).requires_grad_() for _ in range(3))
            logits = {"none": None, "scalar": torch.randn(shape[:3]), "channel": torch.randn(shape)}[decay]
            gate = None if logits is None else functional.logsigmoid(logits + 4).detach().requires_grad_()
            beta = torch.rand(shape[:3]).requires_grad_() if delta else None

            chunked = seconds(partial(_recur, recurrence, q, k, v, gate, beta), repeats, cuda=False)
            stepped = seconds(partial(_recur, stepwise, q, k, v, gate, beta), 1, cuda=False)
            rows.append(
                {
                    "decay": decay,
                    "rule": "delta" if delta else "additive",
                    "chunked_ms": f"{1000 * chunked:.0f}",
                    "stepped_ms": f"{1000 * stepped:.0f}",
                    "times_faster": f"{stepped / chunked:.1f}",
                }
            )
    return rows


def _recur(
    op: Callable[..., tuple[Tensor, Tensor]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor | None,
    beta: Tensor | None,
) -> None:
    o, _ = op(q, k, v, log_decay=gate, beta=beta, scale=1.0, initial_state=None, cu_seqlens=None)
    o.sum().backward()


def markdown(rows: Sequence[Row]) -> str:
    """A table; cells that a row lacks are empty."""
    header = list(dict.fromkeys(key for row in rows for key in row))
    lines = [header, ["---"] * len(header), *([row.get(key, "") for key in header] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def to_csv(rows: Sequence[Row]) -> str:
    """The same as CSV."""
    header = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, header, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write `<table>.csv` and `<table>.md` under `--out`."""
    parser = argparse.ArgumentParser(prog="python -m evalsuite.models.bench", description=__doc__)
    parser.add_argument("what", choices=["mixers"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--mixer", action="append", choices=sorted(MIXERS), help="only this one (repeatable)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if options.device == "cuda":
        names = options.mixer or [name for name in MIXERS if name != "sliding_window"]
        tables = {"mixers_cuda": on_cuda(names)}
    else:
        torch.set_num_threads(1)
        tables = {
            "mixers_cpu": on_cpu(options.mixer or RECURRENT, (512, 2048, 8192), options.repeats),
            "chunked_against_stepping_cpu": chunked_against_stepping(2048, options.repeats),
        }
    for name, rows in tables.items():
        print(f"\n{name}\n{markdown(rows)}")
        if options.out is not None:
            write_text(options.out / f"{name}.csv", to_csv(rows))
            write_text(options.out / f"{name}.md", markdown(rows))


if __name__ == "__main__":
    main()
