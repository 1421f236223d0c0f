"""Which parameters a stage trains."""

from torch import nn

from evalsuite.distill.language_model import LanguageModel
from evalsuite.foundation import ConfigError, nearest

SETS = {
    "mixer_qk": "the query and key projections of the mixers",
    "mixer": "all parameters of the mixers",
    "no_softmax": "all but the softmax layers' attention and the embeddings",
    "no_mlp": "all but the MLPs",
    "no_softmax_no_mlp": "all but the softmax layers' attention, the embeddings and the MLPs",
    "all": "everything",
}
"""Name of a set of parameters → what trains."""


def softmax_layers(model: LanguageModel) -> set[int]:
    """Layers of a student (or teacher) that are softmax attention."""
    mixers = getattr(model.config, "mixers", None)
    count = len(model.model.layers)
    return (
        set(range(count)) if mixers is None else {i for i, mixer in enumerate(mixers) if mixer == "softmax"}
    )


def trained_parameters(model: LanguageModel, which: str) -> dict[str, nn.Parameter]:
    """Set `requires_grad` as the set `which` says, and return the parameters that train, by name.

    A head that is tied to the embeddings counts as embeddings.

    Raises:
        ConfigError: an unknown set, or one that is empty for this model.
    """
    if which not in SETS:
        raise ConfigError(f"unknown set of parameters '{which}'{nearest(which, SETS)}")
    softmax = softmax_layers(model)
    embeddings = {id(parameter) for parameter in model.get_input_embeddings().parameters()}
    chosen: dict[str, nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        trains = _trains(name, which, softmax, id(parameter) in embeddings)
        parameter.requires_grad_(trains)
        if trains:
            chosen[name] = parameter
    if not chosen:
        raise ConfigError(f"no parameter of this student is in the set '{which}' ({SETS[which]})")
    return chosen


def is_mixer(name: str, softmax: set[int]) -> bool:
    """True for a parameter of a mixer that replaced softmax attention."""
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    return name.startswith("model.layers.") and rest.startswith("self_attn.") and int(layer) not in softmax


def _trains(name: str, which: str, softmax: set[int], embedding: bool) -> bool:
    if which == "all":
        return True
    if which == "mixer":
        return is_mixer(name, softmax)
    if which == "mixer_qk":
        return is_mixer(name, softmax) and name.endswith(
            ("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias")
        )
    if ".mlp." in name:
        return which == "no_softmax"
    if which == "no_mlp":
        return True
    kept_attention = ".self_attn." in name and not is_mixer(name, softmax)
    return not (kept_attention or embedding)
