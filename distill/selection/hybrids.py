"""Hybrids put together from two students of one teacher, without copying or training anything.

`full` is the teacher in a student's form, all softmax; `trunk` is the all-linear student. A hybrid takes
some layers from one and the others from the other, for as long as a `with` block lasts.
"""

import copy
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from evalsuite.distill.stages import trained_parameters
from evalsuite.models import StudentForCausalLM


@contextmanager
def restored(
    trunk: StudentForCausalLM, full: StudentForCausalLM, softmax: Collection[int]
) -> Iterator[StudentForCausalLM]:
    """The trunk with the blocks `softmax` changed back to the teacher's (Algorithm 1, line 3)."""
    with _with_blocks(trunk, {layer: full.model.layers[layer] for layer in softmax}, "softmax"):
        yield trunk


@contextmanager
def replaced(
    full: StudentForCausalLM, trunk: StudentForCausalLM, linear: Collection[int]
) -> Iterator[StudentForCausalLM]:
    """The teacher with the mixers `linear` changed to the trunk's; MLPs and norms stay the teacher's."""
    before = {layer: full.model.layers[layer].self_attn for layer in linear}
    mixers = full.config.mixers
    names = list(mixers)
    try:
        for layer in linear:
            full.model.layers[layer].self_attn = trunk.model.layers[layer].self_attn
            names[layer] = trunk.config.mixers[layer]
        full.config.mixers = names
        yield full
    finally:
        full.config.mixers = mixers
        for layer, mixer in before.items():
            full.model.layers[layer].self_attn = mixer


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


def with_own_parameters(student: StudentForCausalLM, train: str) -> StudentForCausalLM:
    """A student with its own copy of the parameters that the set `train` trains; it shares all others.

    See `stages.trained_parameters` for the sets; `requires_grad` is set accordingly.
    """
    chosen = trained_parameters(student, train)
    own = {id(parameter) for parameter in chosen.values()}
    shared: dict[int, Any] = {
        id(parameter): parameter for parameter in student.parameters() if id(parameter) not in own
    }
    made = copy.deepcopy(student, shared)
    for parameter in chosen.values():
        parameter.requires_grad_(False)
    return made
