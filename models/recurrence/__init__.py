"""The one recurrence under every mixer, with two backends behind one switch.

S_t = (I − β_t k_t k_tᵀ) D_t S_{t-1} + β_t k_t v_tᵀ        o_t = S_tᵀ q_t
"""

from evalsuite.models.recurrence.op import (
    backend_note,
    kernels_used,
    matrix,
    recurrence,
    set_backend,
    using_fla,
)
from evalsuite.models.recurrence.stepwise import step, stepwise

__all__ = [
    "backend_note",
    "kernels_used",
    "matrix",
    "recurrence",
    "set_backend",
    "step",
    "stepwise",
    "using_fla",
]
