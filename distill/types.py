"""What data, objectives and training exchange: models, batches and losses."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from evalsuite.models.sequence_parallel import SequenceParallel


class CausalLM(Protocol):
    """A Hugging Face causal language model, teacher or student.

    `model` is the decoder with its `layers`. A student's config also has `mixers`, one name per layer.
    """

    config: Any
    model: Any

    def modules(self) -> Iterator[nn.Module]: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]: ...

    def get_input_embeddings(self) -> nn.Module: ...

    def get_output_embeddings(self) -> nn.Linear: ...

    def set_attn_implementation(self, attn_implementation: str) -> None: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def save_pretrained(self, save_directory: str, *, state_dict: dict[str, Tensor]) -> None: ...


def softmax_layer_indices(model: CausalLM) -> set[int]:
    """Layers of a student (or teacher) with softmax attention."""
    layers = enumerate(model.model.layers)
    return {i for i, layer in layers if getattr(layer.self_attn, "is_teacher_layer", True)}


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """Sequences of one forward pass: input ids and labels [B, T] int64.

    `loss_indices` int64 [N]: positions of the loss tokens in the flattened batch; None if all tokens are.
    With packed documents, `position_ids` [B, T] restart at each document and `cu_seqlens` int32 are the
    document boundaries in the flattened batch; otherwise both are None. `loss_weights` float32 [B, T]:
    weights of the labels, of mean 1 over the loss tokens of the step (see `token_weights`); None: all 1.
    `top_ids` int32 [N, K] and `top_log_probs` float32 [N, K + 1]: the teacher's output at the loss tokens, as
    a teacher store has it (see `TopTokens`); None: the teacher runs. `sequence_parallel`: which part of the
    sequences it has, and who has the others; None: they are whole.
    """

    input_ids: Tensor
    labels: Tensor
    loss_indices: Tensor | None = None
    position_ids: Tensor | None = None
    cu_seqlens: Tensor | None = None
    loss_weights: Tensor | None = None
    top_ids: Tensor | None = None
    top_log_probs: Tensor | None = None
    sequence_parallel: SequenceParallel | None = None

    @property
    def is_dense(self) -> bool:
        """True if all tokens are in the loss and no sequence holds packed documents."""
        return self.loss_indices is None and self.cu_seqlens is None

    def select(self, values: Tensor) -> Tensor:
        """[B, T, …] → [N, …]: the positions of the loss tokens."""
        flat = values.flatten(0, 1)
        return flat if self.loss_indices is None else flat[self.loss_indices]

    def weigh(self, vectors: Tensor, *, squared: bool) -> Tensor:
        """[B, T, D] → [N, D]: the loss tokens, scaled so that their (squared) distances have these weights.

        w ‖s − t‖² = ‖√w s − √w t‖², and w ‖s − t‖ = ‖w s − w t‖.
        """
        selected = self.select(vectors)
        if self.loss_weights is None:
            return selected
        weights = self.select(self.loss_weights)
        return selected * (weights.sqrt() if squared else weights).to(selected.dtype)[:, None]

    def part(self, parallel: SequenceParallel) -> "MicroBatch":
        """This process' part of the sequences, which hold no packed documents."""
        rows, length = self.input_ids.shape
        size = length // parallel.size
        start = parallel.rank * size
        places = torch.arange(rows * length) if self.loss_indices is None else self.loss_indices
        row, column = places // length, places % length - start
        own = (column >= 0) & (column < size)
        names = ("input_ids", "labels", "loss_weights")
        tokens = {
            name: x[:, start : start + size] for name in names if (x := getattr(self, name)) is not None
        }
        top = {
            name: x[own] for name in ("top_ids", "top_log_probs") if (x := getattr(self, name)) is not None
        }
        indices = None if self.loss_indices is None else (row * size + column)[own]
        return replace(self, **tokens, **top, loss_indices=indices, sequence_parallel=parallel)

    def to(self, device: torch.device) -> "MicroBatch":
        """The batch on `device`."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "MicroBatch":
        """The batch in page-locked memory, for asynchronous copies to a GPU."""
        return self._map(lambda tensor: tensor.pin_memory())

    def clone(self) -> "MicroBatch":
        """A copy of the batch in memory of its own."""
        return self._map(lambda tensor: tensor.clone())

    def copy_(self, batch: "MicroBatch") -> None:
        """Copy another batch with the same shapes into this one's memory."""
        for name, into in self._tensors.items():
            into.copy_(getattr(batch, name))

    def _map(self, function: Callable[[Tensor], Tensor]) -> "MicroBatch":
        changed: dict[str, Any] = {name: function(tensor) for name, tensor in self._tensors.items()}
        return replace(self, **changed)

    @property
    def _tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


@dataclass(frozen=True, slots=True, eq=False)
class Rollouts:
    """What one student wrote, as its sequences: prompts with its own tokens, which are the loss tokens."""

    micro_batches: list[MicroBatch]
    num_tokens: int
    """Loss tokens: its own, with the end token of those that ended."""
    count: int
    truncated: int
    """Rollouts that reached the limit of their length."""


@dataclass(frozen=True, slots=True, eq=False)
class GlobalBatch:
    """Data of one optimizer step: the micro-batches of this GPU, and counts over all GPUs."""

    micro_batches: list[MicroBatch]
    num_loss_tokens: int
    """Loss tokens over all GPUs and micro-batches: the denominator of the per-token mean."""
    tokens: int
    state: dict[str, Any]
    """State of the data loader after this step."""
    prompts: Sequence[Sequence[Sequence[int]]] = ()
    """Per sequence that students write themselves, the prompts of its documents."""
    rollouts: Sequence[Rollouts] = ()
    """What each student wrote; none before it has."""

    @property
    def first(self) -> MicroBatch | None:
        """The first micro-batch of the data, or else of a rollout; None if none of a step's prompts fits."""
        rollouts = (batch for each in self.rollouts for batch in each.micro_batches)
        return next(iter(self.micro_batches), None) or next(rollouts, None)


class StepLosses(Protocol):
    """Losses of all students over one optimizer step, independent of its division into micro-batches.

    Tensors keep their memory over steps, as CUDA graphs need.
    """

    def zero(self) -> None:
        """Begin a step."""

    def backward(self, batch: MicroBatch, num_loss_tokens: int) -> None:
        """Add losses of one micro-batch, and its gradients to those of every student.

        Args:
            num_loss_tokens: loss tokens of the whole step, over all processes.
        """

    def reduce(self, all_reduce: Callable[[Tensor], None]) -> tuple[Tensor, Tensor | None]:
        """End a step.

        Args:
            all_reduce: sums a tensor over all processes, in place.

        Returns:
            This process' share of the losses [students, columns]; their sum over processes is the loss. And
            factors on this process' gradients [layers]; None if they are 1.
        """


@runtime_checkable
class RolloutLosses(StepLosses, Protocol):
    """Losses on data and on what students write themselves."""

    def backward_rollouts(self, rollouts: Sequence[Rollouts]) -> None:
        """Add losses of what each student wrote, and their gradients to that student's."""
