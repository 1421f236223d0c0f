"""Taxonomy of mixers: update rule, decay and size of the state (the axes of arXiv 2504.14366, Table 1).

All of it is read from a layer of the mixer on the meta device: from the shapes of what its recurrence gets,
and from what its cache holds. Channels that share a decay (`decay_group_size`) count as channels.
"""

from dataclasses import dataclass
from typing import Any, Literal

from transformers import PreTrainedConfig

from evalsuite.models.decoder.config import StudentConfig
from evalsuite.models.decoder.cost import ModelCost, recurrence_inputs
from evalsuite.models.mixers import MIXERS, RecurrentMixer, StateKind
from evalsuite.models.ops.recurrence.inputs import DecayShape, Rule

Update = Literal["attention", "additive", "delta", "generalized delta"]
Decay = Literal["none", "fixed", "input-dependent"]
Granularity = Literal["head", "channel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Taxonomy:
    """Place of a mixer among all mixers; None for what an interface of its own does not tell."""

    update: Update | None
    """How a token enters the memory: as a key and value of its own, added to the state, or added after what
    the state holds for its key, or for a key apart from it, is removed."""
    decay: Decay | None
    """Whether and by what the state decays."""
    granularity: Granularity | None
    """What has a decay of its own; None without a decay."""
    state_bytes: int
    """Bytes of a layer's cache at any length, at most: states, and the keys and values of a window."""
    token_bytes: int
    """Bytes of a layer's cache that each token adds."""


def taxonomy(mixer: str, teacher: PreTrainedConfig, options: dict[str, Any] | None = None) -> Taxonomy:
    """Taxonomy of a mixer in a student of `teacher`, in bfloat16 with recurrent states in float32.

    Args:
        mixer: its name.
        teacher: whose shape the layer takes.
        options: of the mixer; the defaults without them.

    Raises:
        ConfigError: unknown mixer or option, or a shape that the mixer cannot take.
    """
    cost = ModelCost.of(StudentConfig(_one_layer(teacher), [mixer], {mixer: options or {}}))
    cache = cost.cache()
    assert cache is not None  # A student's layers are known.
    layer = cost.model.model.layers[0].self_attn
    update: Update | None = None if StateKind.RECURRENT in layer.state_kind else "attention"
    decay: Decay | None = None
    granularity: Granularity | None = None
    if isinstance(layer, RecurrentMixer):
        inputs = recurrence_inputs(layer)
        update = _UPDATES[inputs.rule]
        decay, granularity = _DECAYS[inputs.decay_shape]
    return Taxonomy(
        update=update,
        decay=decay,
        granularity=granularity,
        state_bytes=cache.bounded,
        token_bytes=cache.per_token,
    )


def taxonomies(config: StudentConfig) -> dict[str, Taxonomy]:
    """Taxonomy of each mixer of a student with its options; one of another package that fails is left out."""
    found = {}
    for name in sorted(set(config.mixers)):
        try:
            found[name] = taxonomy(name, config.base, config.mixer_options.get(name))
        except Exception:
            # Such a layer may not run without weights, which no evaluation should end with.
            if MIXERS.origin(name) == "evalsuite":
                raise
    return found


def state_bytes(config: StudentConfig) -> int | None:
    """Bytes of a student's cache that do not grow with the context, in the dtypes of `taxonomy`.

    Counted on its own layers, of which softmax heads take a part. None if a layer of another package fails.
    """
    try:
        cache = ModelCost.of(config).cache()
    except Exception:
        if all(MIXERS.origin(name) == "evalsuite" for name in config.mixers):
            raise
        return None
    return None if cache is None else cache.bounded


def _one_layer(teacher: PreTrainedConfig) -> dict[str, Any]:
    """The config with its first layer alone."""
    layers = teacher.num_hidden_layers
    cut = {k: v[:1] if isinstance(v, list) and len(v) == layers else v for k, v in teacher.to_dict().items()}
    return cut | {"num_hidden_layers": 1}


_UPDATES: dict[Rule, Update] = {
    "additive": "additive",
    "delta rule": "delta",
    "generalized delta rule": "generalized delta",
}
_DECAYS: dict[DecayShape, tuple[Decay, Granularity | None]] = {
    "none": ("none", None),
    "head": ("fixed", "head"),
    "scalar": ("input-dependent", "head"),
    "channel": ("input-dependent", "channel"),
}
