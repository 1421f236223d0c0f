"""Layerwise objectives: every student layer is trained on the teacher's own activations.

The teacher runs once, without gradients. As each of its layers finishes, that layer of every student is run
on the same input, compared and differentiated. Memory is that of one layer, there is no full student forward,
and several students share one teacher forward. During CUDA graph capture, the students' layers and the
teacher's next layer run on parallel streams.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from evalsuite.distill.data.loader import MicroBatch
from evalsuite.distill.objectives.end_to_end import teacher_hidden_states
from evalsuite.distill.objectives.hidden_states import l2_distance, l2_norm, matrix_mixing
from evalsuite.distill.objectives.layer_losses import LayerLosses
from evalsuite.distill.recipe import Stage
from evalsuite.distill.training.cuda_streams import SideStreams
from evalsuite.distill.training.parameter_groups import softmax_layer_indices
from evalsuite.distill.types import CausalLM
from evalsuite.models.student.model import packed_mask


def layerwise_backward(
    teacher: CausalLM,
    students: Sequence[CausalLM],
    batch: MicroBatch,
    stage: Stage,
    losses: LayerLosses,
    num_loss_tokens: int,
) -> None:
    """Accumulate the gradients of one micro-batch in every student, and their losses in `losses`.

    The loss of a student is the mean over its replaced layers (arXiv 2504.14366 Eq. 2 and 4). Gradients are
    those of the sum over layers, since every layer is optimized and clipped separately.

    Args:
        num_loss_tokens: loss tokens of the whole step.
    """
    if batch.loss_indices is not None and batch.loss_indices.numel() == 0:
        return
    softmax = [softmax_layer_indices(student) for student in students]
    streams = SideStreams(len(students), batch.input_ids.device)

    def compare(layer: int, activations: dict[str, Any]) -> None:
        divisor: Any = num_loss_tokens
        if stage.objective != "matrix_mixing":
            name = "output" if _compares_mixers(stage) else "block_output"
            activations["target"] = _loss_tokens(activations[name], batch)
            if losses.normalize:
                norm = l2_norm(activations["target"], squared=_is_squared(stage))
                activations["divisor"] = divisor = losses.add_norm(layer, norm)
        streams.join(activations)
        for number, student in enumerate(students):
            if layer in softmax[number]:
                continue
            with streams.fork(number), torch.enable_grad():
                loss = _layer_distance(student.model.layers[layer], activations, batch, stage) / divisor
                loss.backward()
                losses.add_loss(number, layer, loss)

    layers = set.union(
        *(set(range(len(s.model.layers))) - excluded for s, excluded in zip(students, softmax, strict=True))
    )
    with torch.no_grad(), _layer_hooks(teacher, layers, compare):
        teacher_hidden_states(teacher, batch)
    streams.join()


@contextmanager
def _layer_hooks(teacher: CausalLM, layers: set[int], callback: Any) -> Iterator[None]:
    """Call `callback(layer, activations)` when each of the given layers of the teacher finishes.

    `activations` holds the attention's `input` (after the norm), `output`, `attention` matrix (if computed)
    and other `arguments`, and the `block_input` and `block_output`.
    """
    activations: dict[str, Any] = {}
    hooks = []

    def after_attention(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        activations.update(
            arguments=kwargs, input=kwargs["hidden_states"], output=output[0], attention=output[1]
        )

    def after_block(layer: int) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            block_input = args[0] if args else kwargs["hidden_states"]
            activations.update(
                block_input=block_input, block_output=output[0] if isinstance(output, tuple) else output
            )
            callback(layer, activations)
            activations.clear()

        return hook

    try:
        for layer in layers:
            block = teacher.model.layers[layer]
            hooks.append(block.self_attn.register_forward_hook(after_attention, with_kwargs=True))
            hooks.append(block.register_forward_hook(after_block(layer), with_kwargs=True))
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _compares_mixers(stage: Stage) -> bool:
    """Whether outputs of mixers are compared, instead of those of blocks."""
    default = "mixer" if stage.objective == "attention_output" else "block"
    return (stage.alignment_loss.target or default) == "mixer"


def _is_squared(stage: Stage) -> bool:
    """Whether distances are squared."""
    squared = stage.alignment_loss.squared
    return stage.objective == "attention_output" if squared is None else squared


def _loss_tokens(hidden: Tensor, batch: MicroBatch) -> Tensor:
    """Vectors [N, D] of the loss tokens."""
    hidden = hidden.flatten(0, 1)
    return hidden if batch.loss_indices is None else hidden[batch.loss_indices]


def _layer_distance(block: Any, activations: dict[str, Any], batch: MicroBatch, stage: Stage) -> Tensor:
    """Summed distance of a student's layer from the teacher's at the loss tokens, both on the same input."""
    if stage.objective == "matrix_mixing":
        matrix, _ = block.self_attn.attention_matrix(
            activations["input"], activations["arguments"]["position_embeddings"]
        )
        mean = matrix_mixing(matrix, activations["attention"], norm=stage.alignment_loss.matrix_norm)
        return mean * batch.input_ids.numel()
    output = _run_mixer(block.self_attn, activations, batch)
    if not _compares_mixers(stage):
        residual = activations["block_input"] + output
        output = residual + block.mlp(block.post_attention_layernorm(residual))
    return l2_distance(_loss_tokens(output, batch), activations["target"], squared=_is_squared(stage))


def _run_mixer(mixer: nn.Module, activations: dict[str, Any], batch: MicroBatch) -> Tensor:
    """The mixer's output [B, T, D] on the teacher's input; packed documents run as one varlen sequence."""
    hidden: Tensor = activations["input"]
    cos, sin = activations["arguments"]["position_embeddings"]
    window: Any = getattr(mixer, "window", None)
    output: Tensor
    if batch.cu_seqlens is None:
        mask = None if window is None else sliding_window_mask(hidden, window)
        output = mixer(hidden_states=hidden, attention_mask=mask, position_embeddings=(cos, sin))[0]
        return output
    packed = hidden.reshape(1, -1, hidden.shape[-1])
    mask = None if window is None else packed_mask(batch.cu_seqlens, packed, window, hidden.shape[1])
    output = mixer(
        hidden_states=packed,
        attention_mask=mask,
        position_embeddings=(cos.reshape(*packed.shape[:2], -1), sin.reshape(*packed.shape[:2], -1)),
        cu_seqlens=batch.cu_seqlens,
    )[0]
    return output.view_as(hidden)


def sliding_window_mask(hidden: Tensor, window: int) -> Tensor:
    """Causal mask of a sliding window: bool [1, 1, T, T], True where a token attends."""
    attends = torch.ones(hidden.shape[1], hidden.shape[1], dtype=torch.bool, device=hidden.device)
    return attends.tril().triu(1 - window)[None, None]
