"""Hybrids of two students of one teacher, which share their modules."""

import copy
from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import nn

from evalsuite.distill.selection.context import SelectionContext
from evalsuite.distill.selection.layer_sets import Direction
from evalsuite.distill.selection.measured_sets import MeasuredSets
from evalsuite.distill.selection.selector import Start
from evalsuite.distill.trainable import set_trainable
from evalsuite.models import StudentForCausalLM


def with_blocks_of(
    student: StudentForCausalLM, donor: StudentForCausalLM, layers: Collection[int]
) -> StudentForCausalLM:
    """`student` with the blocks of `donor` at `layers`; norm, head and embeddings are its own."""
    return student.with_blocks({layer: donor.model.layers[layer] for layer in layers})


def with_mixers_of(
    student: StudentForCausalLM, donor: StudentForCausalLM, layers: Collection[int]
) -> StudentForCausalLM:
    """`student` with the mixers of `donor` at `layers`; MLPs, norms, head and embeddings are its own."""
    blocks, others = student.model.layers, donor.model.layers
    return student.with_blocks({layer: blocks[layer].with_mixer(others[layer].self_attn) for layer in layers})


def swap_layers(
    direction: Direction,
    all_linear: StudentForCausalLM,
    all_softmax: StudentForCausalLM,
    layers: Collection[int],
) -> StudentForCausalLM:
    """Swap `layers`: `add` restores the teacher's blocks in the all-linear student (Algorithm 1, line 3),
    `remove` makes the teacher's attention linear."""
    if direction == "add":
        return with_blocks_of(all_linear, all_softmax, layers)
    return with_mixers_of(all_softmax, all_linear, layers)


def measured_hybrids(
    context: SelectionContext,
    name: str,
    about: dict[str, Any],
    columns: Sequence[str],
    evaluate: Callable[[StudentForCausalLM], Sequence[float]],
    *,
    cost: Callable[[dict[str, Any]], tuple[float, ...]],
) -> dict[Start, MeasuredSets]:
    """Return measurements of hybrids by where a search starts; only attention is swapped.

    Args:
        name, about, columns, cost: as `MeasuredSets`.
        evaluate: hybrid → values.
    """
    # Distil the all-linear student in all processes before any of them measures alone.
    all_linear, all_softmax = context.all_linear, context.teacher
    every = frozenset(range(context.layers))
    swapped: dict[Start, Callable[[Collection[int]], StudentForCausalLM]] = {
        "all-linear": lambda softmax: with_mixers_of(all_linear, all_softmax, softmax),
        "teacher": lambda softmax: with_mixers_of(all_softmax, all_linear, every.difference(softmax)),
    }

    def measured(start: Start) -> MeasuredSets:
        return MeasuredSets(
            context,
            f"{name}-{start}",
            {"mixer": context.mixer, **context.settings, **about},
            columns,
            lambda softmax: evaluate(swapped[start](softmax)),
            cost=cost,
            unit="hybrid",
        )

    return {start: measured(start) for start in swapped}


def with_output_projection(mixer: Any, projection: nn.Module) -> Any:
    """A mixer with another output projection; all else is shared."""
    other = copy.copy(mixer)
    other._modules = {**mixer._modules, "o_proj": projection}
    return other


def with_output_projections(
    model: StudentForCausalLM, layers: Collection[int], change: Callable[[nn.Linear], None]
) -> StudentForCausalLM:
    """`model` with copies of the output projections of mixers at `layers`, which `change` is called with."""
    blocks = {}
    for layer in layers:
        block = model.model.layers[layer]
        projection = copy.deepcopy(block.self_attn.o_proj)
        change(projection)
        blocks[layer] = block.with_mixer(with_output_projection(block.self_attn, projection))
    return model.with_blocks(blocks)


def copy_trainable(student: StudentForCausalLM, train: str) -> StudentForCausalLM:
    """Copy a student with its own trainable parameters, sharing all others.

    Args:
        train: a set of `set_trainable`, which also sets `requires_grad`.
    """
    trainable = set_trainable(student, train)
    own = {id(parameter) for parameter in trainable.values()}
    shared: dict[int, Any] = {
        id(parameter): parameter for parameter in student.parameters() if id(parameter) not in own
    }
    copied = copy.deepcopy(student, shared)
    for parameter in trainable.values():
        parameter.requires_grad_(False)
    return copied
