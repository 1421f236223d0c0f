"""Taylor-Calibrate: initial values of Gated DeltaNet from the teacher's attention (arXiv 2606.16429).

The paper sets value projection, memory timescale, write gate and output gate of a layer from statistics of
the attention A [H, T, T] that it replaces, and aligns each layer afterwards (here: a stage with objective
`attention_output`). The formulas are those of the authors' code (Taylor-Calibrate at eda6506, strategy
`taylor_calibrate_init`); the numbers of the paper's equations are from quotations of it, since its text and
the Taylor expansion behind them were not at hand. Per head h, with means over the queries t of the
calibration sequences:

    Eq. 8   decay        α_h = 2^(−1/d_h),  d_h = mean of Σ_s A_ts (t − s), over which what is written halves
    Eq. 9   write gate   β_h = 0.3 + 0.4 (max E − E_h) / (max E − min E),  E_h = mean entropy of the rows of A
    Eq. 36  values       W_v σ_h,  σ_h = ⟨C, O⟩ / ‖O‖²: least squares of the recurrence's output O to C = AV
    Eq. 42  output gate  W_g = a W_v,  a = 0.01 rms(C) / rms(silu(W_v x))

Two things are our reading. `b_proj` has no bias; the paper rescales its random rows (Eq. 9), whose logits
over inputs of mean zero have mean zero at any scale, while here the row is the multiple of the mean input
that is nearest to the wanted logit in least squares. And an output gate with a bias, which the authors'
layer does not have, remains the identity that it starts as, so that the least squares hold for the layer's
output.
"""

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers.decay import inverse_softplus
from evalsuite.models.mixers.gated_deltanet import GatedDeltaNet
from evalsuite.models.mixers.options import MixerOptions
from evalsuite.models.ops.recurrence import compute_recurrence

MIN_RATE, MAX_RATE = 0.001, 5.0
"""Bounds of −log α."""
LEAST_WRITE, WRITE_RANGE = 0.3, 0.4
MIN_SCALE, MAX_SCALE = 0.1, 10.0
"""Bounds of σ."""
GATE_DAMPING = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class TeacherAttention:
    """One layer of the teacher on B calibration sequences of T tokens.

    input: of the attention [B, T, hidden]. position_embeddings: cos and sin [1 or B, T, D]. weights: the
    matrix A [B, H, T, T]. context: A V, before the output projection [B, T, H, D].
    """

    input: Tensor
    position_embeddings: tuple[Tensor, Tensor]
    weights: Tensor
    context: Tensor


def attention_distance(weights: Tensor) -> Tensor:
    """Mean distance from query to key: [B, H, T, T] → [H]. A token's distance from itself counts as ½."""
    places = torch.arange(weights.shape[-1], device=weights.device, dtype=weights.dtype)
    distance = (places[:, None] - places).clamp_min(0.5).tril()
    return (weights * distance).sum(-1).mean((0, 2)).clamp_min(0.5)


def attention_entropy(weights: Tensor) -> Tensor:
    """Mean entropy of the rows, in nats: [B, H, T, T] → [H]."""
    return torch.special.entr(weights).sum(-1).mean((0, 2))


def write_strength(entropy: Tensor) -> Tensor:
    """β from the entropy of each head [H]: 0.7 for the most concentrated one, 0.3 for the least."""
    spread = (entropy.max() - entropy.min()).clamp_min(1e-3)
    return LEAST_WRITE + WRITE_RANGE * (1 - (entropy - entropy.min()) / spread)


def constant_row(inputs: Tensor, logits: Tensor) -> Tensor:
    """Rows w [H, hidden] along the mean of inputs x [N, hidden] with w · x nearest to logits [H]."""
    mean = inputs.mean(0)
    products = inputs @ mean
    square = products.square().sum()
    factor = products.sum() / square if square > 0 else square
    return (logits * factor)[:, None] * mean


def value_scale(output: Tensor, context: Tensor, groups: int) -> Tensor:
    """σ of the heads that share a value projection: outputs and contexts [B, T, H, D] → [groups]."""
    product, square = (
        each.sum((0, 1, 3)).view(groups, -1).sum(-1) for each in (output * context, output.square())
    )
    return (product / square.clamp_min(1e-8)).clamp(MIN_SCALE, MAX_SCALE)


@torch.no_grad()
def calibrate(mixer: nn.Module, teacher: TeacherAttention) -> None:
    """Set the initial values of a Gated DeltaNet, in place, after the teacher's projections were copied.

    Raises:
        ConfigError: another mixer, or options that the method has no statistics for.
    """
    fitting = check(mixer, teacher)
    weights, context = teacher.weights.float(), teacher.context.float()
    x, _ = recurrence_output(fitting, teacher)
    rate = (log(2) / attention_distance(weights)).clamp(MIN_RATE, MAX_RATE)
    fitting.A_log.zero_()
    fitting.a_proj.bias.copy_(inverse_softplus(rate))
    beta = torch.logit(write_strength(attention_entropy(weights)))
    fitting.b_proj.weight.copy_(constant_row(x.flatten(0, 1), beta))
    _, output = recurrence_output(fitting, teacher)
    scale = value_scale(output, context, fitting.num_kv_heads)
    for parameter in fitting.v_proj.parameters():
        parameter.view(len(scale), -1).mul_(scale[:, None])
    if sets_gate(fitting.options):
        values = fitting.v_proj.weight.view(fitting.num_kv_heads, fitting.head_v_dim, -1)
        values = values.repeat_interleave(fitting.num_heads // fitting.num_kv_heads, 0).flatten(0, 1)
        root_mean_square = silu(x @ values.T).square().mean().sqrt().clamp_min(1e-8)
        wanted = GATE_DAMPING * context.square().mean(-1).sqrt().mean()
        gate = fitting.g_proj
        assert isinstance(gate, nn.Linear)
        gate.weight.copy_(values * (wanted / root_mean_square))


def recurrence_output(mixer: GatedDeltaNet, teacher: TeacherAttention) -> tuple[Tensor, Tensor]:
    """Input [B, T, hidden] of the gates, and output [B, T, H, V] of the recurrence, before norm and gate."""
    x = teacher.input.float()
    layer = mixer.prepare(x, teacher.position_embeddings)
    out, _ = compute_recurrence(layer.inputs)
    return layer.x, out.float()


def check(mixer: nn.Module, teacher: TeacherAttention) -> GatedDeltaNet:
    """The mixer, if the method fits it; ConfigError otherwise."""
    where = f"layer {getattr(mixer, 'layer_idx', '?')}: calibration taylor"
    if not isinstance(mixer, GatedDeltaNet):
        raise ConfigError(f"{where} fits gated_deltanet, not {getattr(mixer, 'name', type(mixer).__name__)}")
    options = mixer.options
    if (mixer.num_heads, mixer.head_v_dim) != tuple(teacher.context.shape[2:]):
        raise ConfigError(
            f"{where} needs the teacher's {teacher.context.shape[2]} heads of {teacher.context.shape[3]} "
            f"values, not {mixer.num_heads} of {mixer.head_v_dim}; leave out num_heads and expand_v"
        )
    if options.rotary_base:
        raise ConfigError(
            f"{where} takes the teacher's rotary embedding, not rotary_base = {options.rotary_base}; set it "
            "to 0"
        )
    if options.window:
        raise ConfigError(f"{where} has no statistics for window = {options.window}; set window: 0")
    if sets_gate(options) and (options.output_gate != "silu" or options.gate_rank):
        raise ConfigError(
            f"{where}: an output gate without bias must be output_gate: silu of full rank (gate_rank: 0), "
            f"not {options.output_gate} of rank {options.gate_rank}; or set gate_bias: true"
        )
    return mixer


def sets_gate(options: MixerOptions) -> bool:
    """Whether the method sets the output gate: one with a bias starts as the identity, and remains it."""
    return options.output_gate != "none" and not options.gate_bias
