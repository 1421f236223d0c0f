"""The held-out slice: tokens that no student was trained on, and what is measured on them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import exp
from typing import Any

import torch
from torch import Tensor, nn

from evalsuite.distill.batches import Batch, StageData
from evalsuite.distill.chunked_loss import KdForm, chunked_loss
from evalsuite.distill.end_to_end import decode, head_weight
from evalsuite.distill.recipe import DataSource, Recipe, Stage
from evalsuite.foundation import DataError

MICRO_TOKENS = 1 << 14
"""Most tokens of one forward pass."""


def training_part(recipe: Recipe) -> Recipe:
    """The recipe without the documents that are held out."""
    return _with_part(recipe, "train")


def _with_part(recipe: Recipe, part: str) -> Recipe:
    data = {name: _source(source, part) for name, source in recipe.data.items()}
    return recipe.model_copy(update={"data": data})


def _source(source: DataSource, part: str) -> DataSource:
    if source.kind == "pocket":
        # The pocket world has a split of its own for this, whose texts share no question with training.
        return source.model_copy(update={"split": "validation"}) if part == "held_out" else source
    changes: dict[str, Any] = {"part": part}
    if part == "held_out":
        # A window fills up with held-out documents alone: a large one would read the whole corpus.
        changes["shuffle"] = min(source.shuffle, 64)
    return source.model_copy(update=changes)


def held_out_batches(
    recipe: Recipe, stage: Stage, tokenizer: Any, count: int, device: torch.device
) -> list[Batch]:
    """The first `count` sequences of the held-out part of a stage's data, the same for everyone.

    Raises:
        DataError: there is no token to measure on.
    """
    micro = stage.micro_batch or stage.batch
    if stage.packing == "concat":
        # Packed documents run as one long row, whose attention grows with its square; plain rows do not.
        micro = max(micro, MICRO_TOKENS // stage.length)
    micro = min(count, micro)
    count = -(-count // micro) * micro
    reading = stage.model_copy(update={"batch": count, "micro_batch": micro, "tokens": count * stage.length})
    step = next(StageData(_with_part(recipe, "held_out"), reading, tokenizer))
    if step.counted == 0:
        raise DataError(f"stage '{stage.name}': no token of the held-out slice counts")
    return [batch.to(device) for batch in step.micro_batches]


def kept(tensor: Tensor, batch: Batch) -> Tensor:
    """[B, T, …] or [1, B·T, …] → [N, …]: the places whose labels count."""
    flat = tensor.flatten(0, 1)
    return flat if batch.kept is None else flat[batch.kept]


class HeldOut:
    """Batches on the device, with what the teacher makes of them.

    The teacher reads them once, here; give it as it is, with no layer bypassed.
    """

    def __init__(self, teacher: Any, batches: Sequence[Batch], temperature: float = 1.0) -> None:
        self.teacher, self.batches, self.temperature = teacher, list(batches), temperature
        with torch.no_grad():
            self._targets = [kept(decode(teacher, batch), batch) for batch in self.batches]

    @property
    def counted(self) -> int:
        """Tokens that count."""
        return sum(len(targets) for targets in self._targets)

    @torch.no_grad()
    def losses(self, model: Any, *, kl: bool = True) -> tuple[float, float]:
        """Mean CE and KL(teacher ‖ model) per token, in nats, the latter times temperature² (Eq. 5).

        Args:
            model: a student, or the teacher with a layer bypassed.
            kl: without, only CE is computed, and KL is 0.
        """
        form = KdForm(ce=1.0, kl=float(kl), temperature=self.temperature)
        sums = torch.zeros(2, dtype=torch.float64)
        for batch, targets in zip(self.batches, self._targets, strict=True):
            labels = kept(batch.labels, batch)
            _, ce, divergence = chunked_loss(
                kept(decode(model, batch), batch),
                head_weight(model),
                token_weights=torch.ones(labels.shape, device=labels.device),
                form=form,
                labels=labels,
                teacher_hidden=targets if kl else None,
                teacher_weight=head_weight(self.teacher) if kl else None,
            )
            sums += torch.stack([ce, divergence]).double().cpu()
        mean_ce, mean_kl = (sums / self.counted).tolist()
        return mean_ce, mean_kl

    def kl(self, student: Any) -> float:
        """Held-out KL(teacher ‖ student), nats per token: −I(ℓ) of Eq. 6."""
        return self.losses(student)[1]

    def perplexity(self, student: Any) -> float:
        """exp of the mean cross-entropy."""
        return exp(self.losses(student, kl=False)[0])

    @torch.no_grad()
    def hidden_distance(self, student: Any) -> float:
        """Σ over layers of the mean over tokens of ‖U_teacher − U_student‖² (Eq. 4).

        U is the residual stream after a layer's mixer, each model running on its own hidden states.
        """
        total = 0.0
        for batch in self.batches:
            ours, theirs = residuals(student, batch), residuals(self.teacher, batch)
            for mine, target in zip(ours, theirs, strict=True):
                total += (kept(mine, batch).float() - kept(target, batch).float()).square().sum().item()
        return total / self.counted

    @torch.no_grad()
    def final_hidden(self, model: Any) -> list[Tensor]:
        """The final hidden states of each batch, where labels count: [N, D]."""
        return [kept(decode(model, batch), batch).float() for batch in self.batches]


def residuals(model: Any, batch: Batch) -> list[Tensor]:
    """U of every layer: the residual stream as it enters the norm before the MLP."""
    with _watched(model) as seen:
        decode(model, batch)
    return seen


@contextmanager
def _watched(model: Any) -> Iterator[list[Tensor]]:
    seen: list[Tensor] = []

    def before(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0])

    hooks = [layer.post_attention_layernorm.register_forward_pre_hook(before) for layer in model.model.layers]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
