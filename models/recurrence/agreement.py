"""How far a backend is from the torch backend: outputs, final state and every gradient.

`python -m evalsuite.models.recurrence.agreement --out FOLDER` compares fla's kernels on a CUDA device, one
row of relative errors per transition, dtype and head width: the worst over lengths 63 to 2048, fixed and
packed.
For float32 set TRITON_F32_DEFAULT=ieee, or the kernels multiply in TF32.
"""

import argparse
import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.foundation import append_jsonl
from evalsuite.models.recurrence import fla_backend
from evalsuite.models.recurrence.chunked import chunked
from evalsuite.models.recurrence.shapes import Transition

Op = Callable[..., tuple[Tensor, Tensor]]

HEADS = 9
LENGTHS = (2048, 512, 64, 63)
"""Long ones first: kernels tune themselves on the first call, and the long ones are worth it."""
SETTINGS = ((torch.bfloat16, 64), (torch.bfloat16, 128), (torch.float32, 64))
BOUND = {torch.bfloat16: 1e-2, torch.float32: 1e-3}
"""Largest relative error."""


def draw(
    decay: Transition, delta: bool, *, dtype: torch.dtype, width: int, length: int, packed: bool, device: str
) -> tuple[dict[str, Tensor], dict[str, Any], tuple[Tensor, Tensor]]:
    """A case as mixers make it: unit queries and keys, decays near one, a state that was carried over.

    Returns:
        What gets a gradient, the other arguments of the recurrence, and the weights of outputs and final
        state in the loss.
    """
    make = torch.Generator(device).manual_seed(length)
    normal = partial(torch.randn, generator=make, device=device)
    rows = 1 if packed else 2
    cuts = [0, length // 5, length // 5 + 1, length - 2, length]
    sequences = len(cuts) - 1 if packed else rows
    shape = (rows, length, HEADS, width)
    q, k = (functional.normalize(normal(*shape), dim=-1).to(dtype) for _ in range(2))
    leaves = {"q": q, "k": k, "v": normal(*shape).to(dtype)}
    others: dict[str, Any] = {"scale": width**-0.5, "cu_seqlens": None}
    if packed:
        others["cu_seqlens"] = torch.tensor(cuts, device=device, dtype=torch.long)
    if decay == "head":
        others["log_decay"] = -torch.linspace(0.001, 0.1, HEADS, device=device)
    elif decay == "none":
        others["log_decay"] = None
    else:
        leaves["log_decay"] = functional.logsigmoid(normal(*shape[: 3 if decay == "scalar" else 4]) + 3)
    if delta:
        leaves["beta"] = torch.sigmoid(normal(*shape[:3]))
    else:
        others["beta"] = None
    leaves["initial_state"] = normal(sequences, HEADS, width, width) * 0.1
    weights = normal(*shape), normal(sequences, HEADS, width, width) * 0.1
    return leaves, others, weights


def errors(
    candidate: Op, leaves: dict[str, Tensor], others: dict[str, Any], weights: tuple[Tensor, Tensor]
) -> dict[str, float]:
    """Relative error (Frobenius norm) of `candidate` against the torch backend, by name of the tensor."""
    results = []
    for op in (candidate, chunked):
        inputs: dict[str, Any] = {n: x.detach().clone().requires_grad_() for n, x in leaves.items()}
        o, state = op(**inputs, **others)
        ((o.float() * weights[0]).sum() + (state * weights[1]).sum()).backward()
        found: dict[str, Tensor] = {"o": o.detach(), "state": state.detach()}
        for name, x in inputs.items():
            assert x.grad is not None
            found[f"d{name}"] = x.grad
        results.append(found)
    found, wanted = results
    return {name: relative_error(found[name], x) for name, x in wanted.items()}


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """‖found − wanted‖ ÷ ‖wanted‖, in the Frobenius norm."""
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


def worst_errors(
    kernel: fla_backend.Kernel,
    decay: Transition,
    delta: bool,
    *,
    dtype: torch.dtype,
    width: int,
    lengths: Sequence[int] = LENGTHS,
) -> dict[str, float]:
    """The worst relative error of `kernel` over lengths, fixed and packed, by name of the tensor.

    Raises:
        FloatingPointError: an output or a gradient is not a number.
    """
    worst: dict[str, float] = {}
    for length, packed in itertools.product(lengths, (False, True)):
        case = draw(decay, delta, dtype=dtype, width=width, length=length, packed=packed, device="cuda")
        for name, error in errors(partial(fla_backend.run, kernel), *case).items():
            if not math.isfinite(error):
                raise FloatingPointError(f"{name} is not finite at T = {length}, packed = {packed}")
            worst[name] = max(worst.get(name, 0.0), error)
    return worst


def kernels_of(decay: Transition, delta: bool, dtype: torch.dtype, width: int) -> list[fla_backend.Kernel]:
    """The kernel that serves a transition here, and the one that would on Hopper with an older triton."""
    kernel = fla_backend.kernel_for(decay, delta=delta, dtype=dtype, width=width)
    instead = fla_backend.BY_CHANNEL.get(kernel)
    return [kernel] if instead is None else [kernel, instead]


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare, print a line per kernel, and append it to `agreement_cuda.jsonl` under `--out`."""
    parser = argparse.ArgumentParser(
        prog="python -m evalsuite.models.recurrence.agreement", description=__doc__
    )
    parser.add_argument(
        "--decay", action="append", choices=get_args(Transition), help="only this (repeatable)"
    )
    parser.add_argument("--rule", choices=["additive", "delta"], help="only this write rule")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], help="only this dtype")
    parser.add_argument("--width", type=int, help="only this head width")
    parser.add_argument("--length", type=int, action="append", help="only this length (repeatable)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    for decay, rule, (dtype, width) in itertools.product(
        options.decay or get_args(Transition), ("additive", "delta"), SETTINGS
    ):
        name = str(dtype).removeprefix("torch.")
        if options.rule not in (None, rule) or options.dtype not in (None, name):
            continue
        if options.width not in (None, width):
            continue
        for kernel in kernels_of(decay, rule == "delta", dtype, width):
            row: dict[str, Any] = {"decay": decay, "rule": rule, "dtype": name, "head_dim": width}
            row["kernel"] = kernel.name
            try:
                row |= worst_errors(
                    kernel,
                    decay,
                    rule == "delta",
                    dtype=dtype,
                    width=width,
                    lengths=options.length or LENGTHS,
                )
            except Exception as error:  # a kernel that fails is a result, and the others still run
                row["failed"] = f"{type(error).__name__}: {error}"[:300]
            numbers = [value for value in row.values() if isinstance(value, float)]
            row["within_bound"] = bool(numbers) and "failed" not in row and max(numbers) <= BOUND[dtype]
            print(row, flush=True)
            if options.out is not None:
                append_jsonl(options.out / "agreement_cuda.jsonl", [row])


if __name__ == "__main__":
    main()
