"""The recurrence that all mixers share, with a torch and an fla backend.

S_t = (D_t − r_t a_tᵀ) S_{t-1} + k_t v_tᵀ        o_t = S_tᵀ q_t

with r = 0 (the additive rule), apart from the write (the generalized delta rule), or tied to it by one β:
S_t = (I − β_t k_t k_tᵀ) D_t S_{t-1} + β_t k_t v_tᵀ (the delta rule).
"""

from evalsuite.models.ops.recurrence.inputs import OWN, Erase, RecurrenceInputs, StateAccess
from evalsuite.models.ops.recurrence.naive import naive_recurrent
from evalsuite.models.ops.recurrence.op import compute_recurrence, last_kernels, recurrence_matrix

__all__ = [
    "OWN",
    "Erase",
    "RecurrenceInputs",
    "StateAccess",
    "compute_recurrence",
    "last_kernels",
    "naive_recurrent",
    "recurrence_matrix",
]
