"""The recurrence that all mixers share, with a torch and an fla backend.

S_t = (I − β_t k_t k_tᵀ) D_t S_{t-1} + β_t k_t v_tᵀ        o_t = S_tᵀ q_t
"""

from evalsuite.models.kernels.policy import backend_messages, use_triton
from evalsuite.models.recurrence.naive import naive_recurrent, recurrent_step
from evalsuite.models.recurrence.op import (
    last_kernels,
    recurrence,
    recurrence_matrix,
)
from evalsuite.models.recurrence.padding import mask_padding
from evalsuite.models.recurrence.states import OWN, StateAccess

__all__ = [
    "OWN",
    "StateAccess",
    "backend_messages",
    "last_kernels",
    "mask_padding",
    "naive_recurrent",
    "recurrence",
    "recurrence_matrix",
    "recurrent_step",
    "use_triton",
]
