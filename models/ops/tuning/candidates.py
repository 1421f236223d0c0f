"""Candidate configurations of our own kernels, from which `tuning` chooses."""

from collections.abc import Mapping, Sequence
from typing import Any

import triton

MIN_ELEMENTS, MAX_ELEMENTS = 512, 4096
"""Elements that a program of a row-wise kernel holds; more than 4096 spill registers at four warps."""


def row_configs() -> list[Any]:
    """Rows per program (`ROWS`) and warps of kernels whose program holds ROWS × BLOCK elements."""
    return [
        triton.Config({"ROWS": rows}, num_warps=warps)
        for rows in (1, 2, 4, 8, 16, 32, 64)
        for warps in (2, 4, 8, 16)
    ]


def _fitting_rows(configs: Sequence[Any], _: Mapping[str, Any], **arguments: Any) -> list[Any]:
    """The configurations of `row_configs` with a sensible number of elements per program, given BLOCK."""
    block = arguments["BLOCK"]
    fitting = [c for c in configs if MIN_ELEMENTS <= c.kwargs["ROWS"] * block <= MAX_ELEMENTS]
    return fitting or [c for c in configs if c.kwargs["ROWS"] == (1 if block > MAX_ELEMENTS else 64)]


FITTING_ROWS = {"early_config_prune": _fitting_rows}
"""`prune_configs_by` of kernels with `row_configs`."""


def block_configs() -> list[Any]:
    """Elements per program (`BLOCK`) and warps of elementwise kernels."""
    return [
        triton.Config({"BLOCK": block}, num_warps=warps) for block in (1024, 2048, 4096) for warps in (4, 8)
    ]
