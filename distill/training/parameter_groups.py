"""Trainable parameter sets of a stage."""

from collections.abc import Iterable

from torch import nn

from evalsuite.distill.types import CausalLM, softmax_layer_indices
from evalsuite.foundation import ConfigError, nearest

TRAINABLE_SETS = {
    "mixer_qk": "query and key projections of the mixers",
    "mixer": "all parameters of the mixers",
    "block": "all parameters of the layers whose mixers replace softmax attention",
    "no_softmax": "all parameters except softmax attention and embeddings",
    "no_mlp": "all parameters except MLPs",
    "no_softmax_no_mlp": "all parameters except softmax attention, embeddings and MLPs",
    "no_embeddings": "all parameters except embeddings",
    "all": "all parameters",
}
"""Name of a parameter set → its trainable parameters."""


def trainable_names(model: CausalLM, name: str) -> list[str]:
    """Names of the parameters in the set `name`.

    A head that is tied to the embeddings belongs to the embeddings.

    Raises:
        ConfigError: unknown set, or a set that is empty for this model.
    """
    if name not in TRAINABLE_SETS:
        raise ConfigError(f"unknown parameter set '{name}'{nearest(name, TRAINABLE_SETS)}")
    softmax = softmax_layer_indices(model)
    embeddings = {id(parameter) for parameter in model.get_input_embeddings().parameters()}
    found = [
        parameter_name
        for parameter_name, parameter in model.named_parameters()
        if _is_trainable(parameter_name, name, softmax, id(parameter) in embeddings)
    ]
    if not found:
        raise ConfigError(f"this student has no parameters in the set '{name}' ({TRAINABLE_SETS[name]})")
    return found


def set_trainable(model: CausalLM, name: str) -> dict[str, nn.Parameter]:
    """Set `requires_grad` according to the parameter set `name`; return the trainable parameters by name.

    Raises:
        ConfigError: see `trainable_names`.
    """
    chosen = set(trainable_names(model, name))
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter_name in chosen)
    return {name: parameter for name, parameter in model.named_parameters() if name in chosen}


def is_mixer_parameter(name: str, softmax: set[int]) -> bool:
    """True for parameters of mixers that replace softmax attention."""
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    return name.startswith("model.layers.") and rest.startswith("self_attn.") and int(layer) not in softmax


def layer_groups(names: Iterable[str], *, layerwise: bool) -> dict[int, list[str]]:
    """Parameters that are optimized and clipped together: those of each layer, by its number, or all (−1)."""
    groups: dict[int, list[str]] = {}
    for name in names:
        groups.setdefault(int(name.split(".")[2]) if layerwise else -1, []).append(name)
    return groups


def components(names: Iterable[str]) -> dict[str, list[str]]:
    """Parameters by the part of the model that they belong to.

    Norms within mixers belong to these, and a head that is tied to the embedding belongs to that.
    """
    found: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(".")
        known = {"embed_tokens": "embedding", "lm_head": "head", "self_attn": "mixers", "mlp": "mlps"}
        component = next((known[part] for part in parts if part in known), "norms")
        found.setdefault(component, []).append(name)
    return found


def _is_trainable(name: str, trainable_set: str, softmax: set[int], is_embedding: bool) -> bool:
    if trainable_set == "all":
        return True
    if trainable_set == "mixer":
        return is_mixer_parameter(name, softmax)
    if trainable_set == "mixer_qk":
        return is_mixer_parameter(name, softmax) and name.endswith(
            ("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias")
        )
    if trainable_set == "block":
        return name.startswith("model.layers.") and int(name.split(".")[2]) not in softmax
    if trainable_set == "no_embeddings":
        return not is_embedding
    if ".mlp." in name:
        return trainable_set == "no_softmax"
    if trainable_set == "no_mlp":
        return True
    is_softmax_attention = ".self_attn." in name and not is_mixer_parameter(name, softmax)
    return not (is_softmax_attention or is_embedding)
