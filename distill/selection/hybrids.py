"""Hybrids of two students of one teacher: layers of one in the other, without copying weights."""

import copy
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn

from evalsuite.distill.selection.layer_sets import Direction
from evalsuite.distill.trainable import set_trainable
from evalsuite.models import StudentForCausalLM


@contextmanager
def hybrid_from_linear(
    all_linear: StudentForCausalLM, all_softmax: StudentForCausalLM, softmax: Collection[int]
) -> Iterator[StudentForCausalLM]:
    """The all-linear student with the teacher's blocks at layers `softmax` (Algorithm 1, line 3).

    Modifies the student in place and reverts it on exit; copies nothing.
    """
    with _with_blocks(all_linear, {layer: all_softmax.model.layers[layer] for layer in softmax}, "softmax"):
        yield all_linear


@contextmanager
def swap_mixers(
    student: StudentForCausalLM, donor: StudentForCausalLM, layers: Collection[int]
) -> Iterator[StudentForCausalLM]:
    """`student` with the mixers of `donor` at `layers`; MLPs, norms and embeddings stay its own.

    Modifies the student in place and reverts it on exit; copies nothing.
    """
    before = {layer: student.model.layers[layer].self_attn for layer in layers}
    mixers = student.config.mixers
    names = list(mixers)
    try:
        for layer in layers:
            student.model.layers[layer].self_attn = donor.model.layers[layer].self_attn
            names[layer] = donor.config.mixers[layer]
        student.config.mixers = names
        yield student
    finally:
        student.config.mixers = mixers
        for layer, mixer in before.items():
            student.model.layers[layer].self_attn = mixer


@contextmanager
def _with_blocks(student: StudentForCausalLM, blocks: dict[int, nn.Module], mixer: str) -> Iterator[None]:
    before = {layer: student.model.layers[layer] for layer in blocks}
    mixers = student.config.mixers
    names = list(mixers)
    try:
        for layer, block in blocks.items():
            student.model.layers[layer] = block
            names[layer] = mixer
        student.config.mixers = names
        yield
    finally:
        student.config.mixers = mixers
        for layer, block in before.items():
            student.model.layers[layer] = block


def swap_layers(
    direction: Direction,
    all_linear: StudentForCausalLM,
    all_softmax: StudentForCausalLM,
    layers: Collection[int],
) -> AbstractContextManager[StudentForCausalLM]:
    """Swap `layers`: `add` restores them in the all-linear student, `remove` makes the teacher's linear."""
    if direction == "add":
        return hybrid_from_linear(all_linear, all_softmax, layers)
    return swap_mixers(all_softmax, all_linear, layers)


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
