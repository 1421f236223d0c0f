"""The chunked recurrence and fla's naive chunked functions, both in plain torch on one thread of a CPU.

With fla and triton importable, transformers' own linear-attention models call kernels that do not run on a
CPU. Install fla into a separate folder and add it to the path for this command only:

    python -m pip install --no-deps --target fla-naive fla-core==0.6.0 einops triton
    PYTHONPATH=fla-naive python tests/performance/bench_fla_naive.py --out reports/results/mixers
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from evalsuite.cli.exit_codes import guarded
from evalsuite.foundation import MissingDependencyError
from evalsuite.foundation.parser import Parser
from tests.parity.kernel_accuracy import recurrence, relative_error
from tests.performance.bench_mixers import Row, Tables, recurrence_inputs, seconds

ROWS, LENGTH = 4, 512
"""At 9 heads of 64."""

Case = dict[str, Tensor]

# fla's naive chunked functions: module, name, decay, delta rule, heads before tokens.
FUNCTIONS = (
    ("linear_attn", "naive_chunk_linear_attn", "none", False, False),
    ("simple_gla", "naive_chunk_simple_gla", "scalar", False, False),
    ("delta_rule", "delta_rule_chunkwise", "none", True, True),
    ("gated_delta_rule", "naive_chunk_gated_delta_rule", "scalar", True, False),
    ("kda", "naive_chunk_kda", "channel", True, False),
)


def against_naive(module: str, name: str, decay: str, delta: bool, heads_first: bool, *, repeats: int) -> Row:
    """Seconds of forward and backward on both sides, and the relative difference of the outputs.

    Raises:
        MissingDependencyError: fla cannot be imported.
    """
    try:
        function = getattr(importlib.import_module(f"fla.ops.{module}.naive"), name)
    except ImportError as error:
        raise MissingDependencyError(
            f"{error}; see the docstring of tests/performance/bench_fla_naive.py"
        ) from error
    inputs = recurrence_inputs(decay, delta, ROWS, LENGTH)
    case = {name: x for name, x in inputs.items() if x is not None}
    naive = partial(_naive, function, case, heads_first)
    ours = partial(_ours, case)
    difference = relative_error(ours(), naive())
    naive_s = seconds(lambda: naive().sum().backward(), repeats, cuda=False)
    ours_s = seconds(lambda: ours().sum().backward(), repeats, cuda=False)
    return {
        "fla": name,
        "decay": decay,
        "rule": "delta" if delta else "additive",
        "naive_s": f"{naive_s:.3f}",
        "ours_s": f"{ours_s:.3f}",
        "times_faster": f"{naive_s / ours_s:.2f}",
        "output_difference": f"{difference:.0e}",
    }


def _ours(case: Case) -> Tensor:
    return recurrence(**case, scale=case["k"].shape[-1] ** -0.5)[0]


def _naive(function: Callable[..., Tensor | tuple[Tensor, ...]], case: Case, heads_first: bool) -> Tensor:
    """fla's call: log decay as `g`, default scale; some functions take [B, H, T, D]."""
    renamed = {"g" if name == "log_decay" else name: x for name, x in case.items()}
    if heads_first:
        renamed = {name: x.transpose(1, 2) for name, x in renamed.items()}
    result = function(**renamed)
    o = result if isinstance(result, Tensor) else result[0]
    return o.transpose(1, 2) if heads_first else o


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and measure."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder for the table (CSV and Markdown)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    tables = Tables(options.out)
    for function in FUNCTIONS:
        tables.add("against_fla_naive_cpu", against_naive(*function, repeats=options.repeats))
    return 0


if __name__ == "__main__":
    sys.exit(guarded("bench_fla_naive", main, resumable=False))
