"""Conjugate gradients in one kernel: the solver of flash-linear-attention's MesaNet (CUDA only).

Of `fla.ops.mesa_net` 0.6.0 this calls the solver alone, with states, keys and vectors in float32. The rest of
`chunk_mesa_net` is not used, as its rounding, computed in torch, changes the layer:

- Every step adds 1e-5 to its divisors, whatever the scale. Of the gradient of q, 0.2 to 0.98 is lost where an
  element of that of o is 1e-5; the mean over a batch has smaller ones. Here vectors have length `LENGTH`.
- G is in bfloat16, vectors and gradients are in float16. Over a memory of 1,000 tokens with similar keys
  outputs are off by up to 0.6, and tokens in generation are not. With G in float32 and vectors in TF32 it is
  0.03, less than reading G in TF32 adds.

Without `cu_seqlens` nothing is counted on the host, so that a CUDA graph can record a training step.
"""

import torch
from fla.ops.common.chunk_h import chunk_fwd_h
from fla.ops.mesa_net.chunk_cg_solver_bwd import chunk_mesa_cg_bwd
from fla.ops.utils import chunk_local_cumsum
from fla.ops.utils.constant import RCP_LN2
from torch import Tensor

from evalsuite.models.ops.recurrence.fla_backend import in_one_row
from evalsuite.models.ops.recurrence.inputs import RecurrenceInputs

CHUNK_SIZE = 64
LENGTH = 1024.0
"""Length of each vector in the kernel, whose square 1e-5 does not change."""
LEAST = 1e-30
"""Length from which a vector counts as zero."""


def solve_ridge(inputs: RecurrenceInputs, num_steps: int) -> Tensor:
    """Compute (I + H_t)⁻¹ q_t; see the op of this name."""
    inputs = inputs.plain()
    rows, length = inputs.q.shape[:2]
    if rows > 1 and inputs.cu_seqlens is None and not torch.is_grad_enabled():
        # Sums of decays are compiled for a number of rows, which inference changes in every batch.
        return solve_ridge(in_one_row(inputs), num_steps).unflatten(1, (rows, length)).squeeze(0)
    # The kernels know no strides.
    q, write, k = inputs.q.contiguous(), inputs.k.contiguous(), inputs.v.contiguous()
    log_decay, state, bounds = inputs.decay_per_token, inputs.initial_state, inputs.cu_seqlens
    if log_decay is None:
        log_decay = q.new_zeros(q.shape[:3])
    beta = (write * k).sum(-1) / (k * k).sum(-1).clamp_min(LEAST)
    norm = torch.linalg.vector_norm(q, dim=-1, keepdim=True).clamp_min(LEAST)
    with torch.cuda.device_of(q):
        decay = chunk_local_cumsum(
            log_decay.float().contiguous(), CHUNK_SIZE, scale=RCP_LN2, cu_seqlens=bounds
        )
        before, _ = chunk_fwd_h(
            k=write,
            v=k,
            g=decay,
            h0=None if state is None else state.float().contiguous(),
            cu_seqlens=bounds,
            chunk_size=CHUNK_SIZE,
            states_in_fp32=True,
        )
        x = chunk_mesa_cg_bwd(
            dq=q * (LENGTH / norm),
            k=k,
            h=before,
            g_local_cumsum=decay,
            beta=beta,
            lamb=q.new_ones(q.shape[2:]),
            cu_seqlens=bounds,
            chunk_size=CHUNK_SIZE,
            max_CG_iteration=num_steps,
        )
    return x * (norm / LENGTH)
