"""Softmax attention and a recurrence mixed by gates that are learned together (after arXiv 2606.30562).

    o = W (g ⊙ attention) + W' ((1 − g) ⊙ recurrence),    loss = KL(teacher ‖ gated) + penalty · mean(g)

with a gate g = σ(θ) for each layer or head, and all weights frozen. A gate closes unless its attention saves
more divergence than it costs.
"""

from collections.abc import Sequence
from itertools import islice
from math import isfinite

import torch
from torch import Tensor, nn
from torch.nn import functional

from evalsuite.distill.data.loader import StageDataLoader, prefetch
from evalsuite.distill.objectives.end_to_end import KnowledgeDistillation
from evalsuite.distill.selection.context import SelectionContext
from evalsuite.distill.selection.hybrids import with_output_projection
from evalsuite.foundation import ConfigError, progress
from evalsuite.models import StudentForCausalLM
from evalsuite.models.mixers import RecurrentMixer, SoftmaxHeadsMixer


class GatedProjection(nn.Module):
    """An output projection of which each head's input is weighted by its gate, or by what the gate leaves.

    Args:
        projection: of all heads.
        logits: θ [heads], or [1] for one gate of all.
        is_kept: whether the gates are its weights, and not one minus the gates.
    """

    def __init__(self, projection: nn.Linear, logits: Tensor, *, is_kept: bool) -> None:
        super().__init__()
        self.projection, self.logits, self._sign = projection, logits, 1.0 if is_kept else -1.0

    def forward(self, x: Tensor) -> Tensor:
        # σ(−θ) = 1 − σ(θ), exact where gates are closed.
        share = torch.sigmoid(self._sign * self.logits).to(x.dtype)
        weighted = (x.unflatten(-1, (len(share), -1)) * share[:, None]).flatten(-2)
        out = functional.linear(weighted, self.projection.weight)
        return out if self.projection.bias is None else out + share.mean() * self.projection.bias


class GatedStudent:
    """The teacher with the mixers of an all-linear student next to its attention, and a gate for each unit.

    Args:
        by_head: a gate for each head instead of each layer.

    Raises:
        ConfigError: a mixer that is not recurrent or cannot stand next to attention (see
            `SoftmaxHeadsMixer`), or gates of heads where it has other heads than the teacher.
    """

    def __init__(self, context: SelectionContext, *, by_head: bool) -> None:
        heads = context.heads
        self.logits: list[Tensor] = [
            nn.Parameter(torch.zeros(heads if by_head else 1, device=context.device))
            for _ in range(context.layers)
        ]
        blocks = {}
        for layer, logits in enumerate(self.logits):
            block, donor = (each.model.layers[layer] for each in (context.teacher, context.all_linear))
            linear = donor.self_attn
            if not isinstance(linear, RecurrentMixer):
                raise ConfigError(f"layer {layer}: {linear.name} is no recurrent mixer, which gates need")
            if by_head and linear.num_heads != heads:
                raise ConfigError(
                    f"layer {layer}: {linear.name} has {linear.num_heads} heads, the teacher {heads}; remove "
                    "the option num_heads, or select layers"
                )
            softmax, recurrent = (
                with_output_projection(mixer, GatedProjection(mixer.o_proj, logits, is_kept=is_kept))
                for mixer, is_kept in ((block.self_attn, True), (linear, False))
            )
            mixer = SoftmaxHeadsMixer(softmax, recurrent, range(heads), heads)
            blocks[layer] = block.with_mixer(mixer)
        self.model: StudentForCausalLM = context.teacher.with_blocks(blocks)

    @property
    def gates(self) -> Tensor:
        """g of all units, in order."""
        return torch.sigmoid(torch.cat(self.logits))

    @torch.no_grad()
    def keep(self, units: Sequence[int]) -> None:
        """Open the gates of these units, and close all others."""
        each = torch.full_like(self.gates, -torch.inf)
        each[list(units)] = torch.inf
        for logits, values in zip(self.logits, each.split([len(own) for own in self.logits]), strict=True):
            logits.copy_(values)


def train_gates(
    context: SelectionContext,
    student: GatedStudent,
    stage: KnowledgeDistillation,
    *,
    lr: float,
    penalty: float,
) -> None:
    """Train the gates on a stage's data, in every process alike.

    Args:
        stage: its loss, tokens and sequences.
        lr: of Adam, which falls linearly to 0.
        penalty: what open gates cost, all together, in nats per token.

    Raises:
        ConfigError: the loss is not finite.
    """
    optimizer = torch.optim.Adam(student.logits, lr=lr)
    losses = stage.start(context.teacher, [student.model], context.device)
    data = StageDataLoader(context.open_sources(), stage)
    with progress(total=stage.steps, what="gates", unit="step", quiet=context.quiet) as bar:
        for step, batch in enumerate(prefetch(islice(data, stage.steps))):
            for group in optimizer.param_groups:
                group["lr"] = lr * (1 - step / stage.steps)
            optimizer.zero_grad()
            losses.zero()
            (penalty * student.gates.mean()).backward()
            for micro_batch in batch.micro_batches:
                losses.backward(micro_batch.to(context.device), batch.num_loss_tokens)
            found = float(losses.reduce(lambda _: None)[0][0, 0])
            if not isfinite(found):
                raise ConfigError(f"gates: the loss of step {step} is {found}; lower --option lr")
            optimizer.step()
            bar.update(1)
