"""The sets of parameters that a stage can train. Needs no torch, as recipes are also checked without it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from evalsuite.foundation import ConfigError, nearest

if TYPE_CHECKING:
    from torch import nn

    from evalsuite.distill.types import CausalLM


@dataclass(frozen=True)
class Place:
    """Where a parameter is in a student. A head that is tied to the embeddings belongs to these."""

    name: str
    is_embedding: bool
    is_replaced: bool
    """Whether it is in a layer whose mixer replaces softmax attention."""
    is_mixer: bool
    """Whether it is part of that mixer."""
    is_softmax: bool
    """Whether it is part of softmax attention, also of softmax heads in a replaced layer."""
    is_mlp: bool


@dataclass(frozen=True)
class TrainableSet:
    """A set of parameters: its title, and whether it contains the parameter at a place."""

    title: str
    contains: Callable[[Place], bool]


QUERY_KEY = ("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias")
TRAINABLE_SETS = {
    "mixer_qk": TrainableSet(
        "query and key projections of the mixers", lambda at: at.is_mixer and at.name.endswith(QUERY_KEY)
    ),
    "mixer": TrainableSet("all parameters of the mixers", lambda at: at.is_mixer),
    "block": TrainableSet(
        "all parameters of the layers whose mixers replace softmax attention", lambda at: at.is_replaced
    ),
    "no_softmax": TrainableSet(
        "all parameters except softmax attention and embeddings",
        lambda at: not (at.is_softmax or at.is_embedding),
    ),
    "no_mlp": TrainableSet("all parameters except MLPs", lambda at: not at.is_mlp),
    "no_softmax_no_mlp": TrainableSet(
        "all parameters except softmax attention, embeddings and MLPs",
        lambda at: not (at.is_softmax or at.is_embedding or at.is_mlp),
    ),
    "no_embeddings": TrainableSet("all parameters except embeddings", lambda at: not at.is_embedding),
    "all": TrainableSet("all parameters", lambda at: True),
}

if TYPE_CHECKING:
    TrainableName = str
else:
    TrainableName = Literal[tuple(TRAINABLE_SETS)]


def places(model: "CausalLM") -> dict[str, Place]:
    """Where the parameters of a student (or teacher) are, by name."""
    from evalsuite.distill.types import softmax_layer_indices

    softmax = softmax_layer_indices(model)
    kept = {
        id(parameter)
        for module in model.modules()
        if getattr(module, "is_teacher_layer", False)
        for parameter in module.parameters()
    }
    embeddings = {id(parameter) for parameter in model.get_input_embeddings().parameters()}
    found = {}
    for name, parameter in model.named_parameters():
        layer = layer_of(name)
        is_replaced = layer is not None and layer not in softmax
        is_attention = ".self_attn." in name
        is_softmax = is_attention and (not is_replaced or id(parameter) in kept)
        found[name] = Place(
            name,
            is_embedding=id(parameter) in embeddings,
            is_replaced=is_replaced,
            is_mixer=is_attention and not is_softmax,
            is_softmax=is_softmax,
            is_mlp=".mlp." in name,
        )
    return found


def layer_of(name: str) -> int | None:
    """The layer of a parameter; None outside of the layers."""
    rest = name.removeprefix("model.layers.")
    return None if rest == name else int(rest.partition(".")[0])


def trainable_names(model: "CausalLM", name: str) -> list[str]:
    """Names of the parameters in the set `name`.

    Raises:
        ConfigError: unknown set, or a set that is empty for this model.
    """
    return names_in_set(places(model), name)


def names_in_set(found: Mapping[str, Place], name: str) -> list[str]:
    """Names of the parameters in the set `name`, of all that `places` found.

    Raises:
        ConfigError: see `trainable_names`.
    """
    if name not in TRAINABLE_SETS:
        raise ConfigError(f"unknown parameter set '{name}'{nearest(name, TRAINABLE_SETS)}")
    chosen = TRAINABLE_SETS[name]
    names = [parameter for parameter, place in found.items() if chosen.contains(place)]
    if not names:
        raise ConfigError(f"this student has no parameters in the set '{name}' ({chosen.title})")
    return names


def set_trainable(model: "CausalLM", name: str) -> "dict[str, nn.Parameter]":
    """Set `requires_grad` according to the parameter set `name`; return the trainable parameters by name.

    Raises:
        ConfigError: see `trainable_names`.
    """
    chosen = set(trainable_names(model, name))
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter_name in chosen)
    return {name: parameter for name, parameter in model.named_parameters() if name in chosen}


def mixer_names(model: "CausalLM") -> set[str]:
    """Names of the parameters of mixers that replace softmax attention."""
    return {name for name, place in places(model).items() if place.is_mixer}
