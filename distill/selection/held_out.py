"""The held-out slice: tokens that no student was trained on, and what is measured on them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
    micro = max(1, min(count, MICRO_TOKENS // stage.length))
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


@dataclass(frozen=True)
class HeldOut:
    """Batches on the device, with the teacher that they are compared to."""

    teacher: Any
    batches: Sequence[Batch]
    temperature: float = 1.0

    @property
    def counted(self) -> int:
        """Tokens that count."""
        return sum(
            batch.labels.numel() if batch.kept is None else batch.kept.numel() for batch in self.batches
        )

    @torch.no_grad()
    def losses(self, student: Any) -> tuple[float, float]:
        """Mean CE and KL(teacher ‖ student) per token, in nats, the latter times temperature² (Eq. 5).

        The teacher itself may be given as the student.
        """
        form = KdForm(ce=1.0, kl=1.0, temperature=self.temperature)
        sums = torch.zeros(2, dtype=torch.float64)
        for batch in self.batches:
            labels = kept(batch.labels, batch)
            _, ce, kl = chunked_loss(
                kept(decode(student, batch), batch),
                head_weight(student),
                token_weights=torch.ones(labels.shape, device=labels.device),
                form=form,
                labels=labels,
                teacher_hidden=kept(decode(self.teacher, batch), batch),
                teacher_weight=head_weight(self.teacher),
            )
            sums += torch.stack([ce, kl]).double().cpu()
        ce, kl = (sums / self.counted).tolist()
        return ce, kl

    def kl(self, student: Any) -> float:
        """Held-out KL(teacher ‖ student), nats per token: −I(ℓ) of Eq. 6."""
        return self.losses(student)[1]

    def perplexity(self, student: Any) -> float:
        """exp of the mean cross-entropy."""
        return exp(self.losses(student)[0])

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
