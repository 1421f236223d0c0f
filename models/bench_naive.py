"""The chunked recurrence against fla's naive chunked code, both in plain torch on one thread of a CPU.

With fla and triton importable, transformers' own linear-attention models call kernels that no CPU can run, so
fla goes into a folder of its own, which only this command sees:

    python -m pip install --no-deps --target /tmp/fla fla-core==0.6.0 einops triton
    PYTHONPATH=/tmp/fla python -m evalsuite.models.bench naive --out reports/published/mixers
"""

import importlib
from collections.abc import Callable
from functools import partial

from torch import Tensor

from evalsuite.foundation import MissingDependencyError
from evalsuite.models.bench import Row, recurrence_inputs, seconds
from evalsuite.models.recurrence import recurrence
from evalsuite.models.recurrence.agreement import relative_error

ROWS, LENGTH = 4, 512
"""At 9 heads of 64."""

Case = dict[str, Tensor]

# fla's naive chunked functions: module, name, our transition (decay, delta rule?), heads before tokens?
FUNCTIONS = (
    ("linear_attn", "naive_chunk_linear_attn", "none", False, False),
    ("simple_gla", "naive_chunk_simple_gla", "scalar", False, False),
    ("delta_rule", "delta_rule_chunkwise", "none", True, True),
    ("gated_delta_rule", "naive_chunk_gated_delta_rule", "scalar", True, False),
    ("kda", "naive_chunk_kda", "channel", True, False),
)


def against_naive(module: str, name: str, decay: str, delta: bool, heads_first: bool, *, repeats: int) -> Row:
    """Seconds forward and backward of fla's function and of ours, and how far their outputs are apart.

    Raises:
        MissingDependencyError: fla cannot be imported.
    """
    try:
        function = getattr(importlib.import_module(f"fla.ops.{module}.naive"), name)
    except ImportError as error:
        raise MissingDependencyError(f"{error}; see the top of models/bench_naive.py") from error
    given = recurrence_inputs(decay, delta, ROWS, LENGTH)
    case = {name: x for name, x in given.items() if x is not None}
    naive = partial(_naive, function, case, heads_first)
    ours = partial(_ours, case)
    difference = relative_error(ours(), naive())
    theirs_s = seconds(lambda: naive().sum().backward(), repeats, cuda=False)
    ours_s = seconds(lambda: ours().sum().backward(), repeats, cuda=False)
    return {
        "fla": name,
        "decay": decay,
        "rule": "delta" if delta else "additive",
        "naive_s": f"{theirs_s:.3f}",
        "ours_s": f"{ours_s:.3f}",
        "times_faster": f"{theirs_s / ours_s:.2f}",
        "output_difference": f"{difference:.0e}",
    }


def _ours(case: Case) -> Tensor:
    return recurrence(**case, scale=case["k"].shape[-1] ** -0.5)[0]


def _naive(function: Callable[..., Tensor | tuple[Tensor, ...]], case: Case, heads_first: bool) -> Tensor:
    """Their call: log decay as `g`, the scale as their default; some take [B, H, T, D]."""
    renamed = {"g" if name == "log_decay" else name: x for name, x in case.items()}
    if heads_first:
        renamed = {name: x.transpose(1, 2) for name, x in renamed.items()}
    result = function(**renamed)
    o = result if isinstance(result, Tensor) else result[0]
    return o.transpose(1, 2) if heads_first else o
