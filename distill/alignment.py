"""Layer-by-layer alignment on the teacher's own activations.

The teacher runs once, without gradient; as each of its layers finishes, that layer of every student is
run on the same input, compared, differentiated and forgotten. Memory is one layer, no student forward
exists, and several students share one teacher forward. In a captured CUDA graph the students of a layer and
the teacher's next layer stand side by side, so that one fills the GPU where another leaves it waiting.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from evalsuite.distill.batches import Batch
from evalsuite.distill.end_to_end import run_teacher
from evalsuite.distill.lanes import Lanes
from evalsuite.distill.language_model import LanguageModel
from evalsuite.distill.objectives import matrix_mixing, vector_distance
from evalsuite.distill.recipe import Stage
from evalsuite.distill.stages import softmax_layers
from evalsuite.models.student.model import packed_mask


def align(
    teacher: LanguageModel, students: Sequence[LanguageModel], batch: Batch, stage: Stage, share: float
) -> Tensor:
    """Add the gradients of one micro-batch to every student, and return their losses [students].

    Args:
        share: this micro-batch's part of the step's loss (tokens that count here over all of them).

    The loss of a student is the mean over its replaced layers (arXiv 2504.14366 Eq. 2 and 4). Gradients
    are those of the layers' sum, since every layer is optimized, and clipped, on its own.
    """
    softmax = [softmax_layers(student) for student in students]
    lanes = Lanes(len(students), batch.inputs.device)
    losses = torch.zeros(len(students), device=batch.inputs.device)
    if share == 0:
        return losses

    def compare(layer: int, seen: dict[str, Any]) -> None:
        lanes.join(seen)
        for number, student in enumerate(students):
            if layer in softmax[number]:
                continue
            with lanes.beside(number), torch.enable_grad():
                loss = _layer_loss(student.model.layers[layer], seen, batch, stage)
                (loss * share).backward()
                losses[number] += loss.detach() * (share / (len(student.model.layers) - len(softmax[number])))

    wanted = set.union(
        *(set(range(len(s.model.layers))) - kept for s, kept in zip(students, softmax, strict=True))
    )
    with torch.no_grad(), _watch(teacher, wanted, compare):
        run_teacher(teacher, batch)
    lanes.join()
    return losses


@contextmanager
def _watch(teacher: LanguageModel, wanted: set[int], compare: Any) -> Iterator[None]:
    """Call `compare(layer, seen)` as each wanted layer of the teacher finishes.

    `seen` holds the attention's `input` (after the norm) and `output`, its `attention` matrix where the
    teacher makes one, its other arguments, and the `block_input` and `block_output` around it.
    """
    seen: dict[str, Any] = {}
    hooks = []

    def after_attention(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        seen.update(arguments=kwargs, input=kwargs["hidden_states"], output=output[0], attention=output[1])

    def after_block(layer: int) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            block_input = args[0] if args else kwargs["hidden_states"]
            seen.update(
                block_input=block_input, block_output=output[0] if isinstance(output, tuple) else output
            )
            compare(layer, seen)
            seen.clear()

        return hook

    try:
        for layer in wanted:
            block = teacher.model.layers[layer]
            hooks.append(block.self_attn.register_forward_hook(after_attention, with_kwargs=True))
            hooks.append(block.register_forward_hook(after_block(layer), with_kwargs=True))
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _layer_loss(block: Any, seen: dict[str, Any], batch: Batch, stage: Stage) -> Tensor:
    """The distance between a student's layer and the teacher's, run on the teacher's input."""
    distance = stage.distance
    if stage.objective == "matrix_mixing":
        own, _ = block.self_attn.matrix(seen["input"], seen["arguments"]["position_embeddings"])
        return matrix_mixing(own, seen["attention"], norm=distance.matrix_norm)
    target = distance.target or ("mixer" if stage.objective == "attention_output" else "block")
    mixed = _run_mixer(block.self_attn, seen, batch)
    if target == "mixer":
        student, expected = mixed, seen["output"]
    else:
        residual = seen["block_input"] + mixed
        student = residual + block.mlp(block.post_attention_layernorm(residual))
        expected = seen["block_output"]
    student, expected = student.flatten(0, 1), expected.flatten(0, 1)
    if batch.kept is not None:
        student, expected = student[batch.kept], expected[batch.kept]
    squared = distance.squared if distance.squared is not None else stage.objective == "attention_output"
    return vector_distance(student, expected, squared=squared, relative=distance.relative)


def _run_mixer(mixer: nn.Module, seen: dict[str, Any], batch: Batch) -> Tensor:
    """The mixer's output [B, T, D] on the teacher's input; packed documents are run as one long row."""
    hidden: Tensor = seen["input"]
    cosine, sine = seen["arguments"]["position_embeddings"]
    window: Any = getattr(mixer, "window", None)
    output: Tensor
    if batch.cu_seqlens is None:
        mask = None if window is None else window_mask(hidden, window)
        output = mixer(hidden_states=hidden, attention_mask=mask, position_embeddings=(cosine, sine))[0]
        return output
    row = hidden.reshape(1, -1, hidden.shape[-1])
    mask = None if window is None else packed_mask(batch.cu_seqlens, row, window, hidden.shape[1])
    output = mixer(
        hidden_states=row,
        attention_mask=mask,
        position_embeddings=(cosine.reshape(*row.shape[:2], -1), sine.reshape(*row.shape[:2], -1)),
        cu_seqlens=batch.cu_seqlens,
    )[0]
    return output.view_as(hidden)


def window_mask(hidden: Tensor, window: int) -> Tensor:
    """The causal mask of a sliding window, true where a token may look: bool [1, 1, T, T]."""
    seen = torch.ones(hidden.shape[1], hidden.shape[1], dtype=torch.bool, device=hidden.device)
    return seen.tril().triu(1 - window)[None, None]
