"""What distinguishes the families of teachers: the only place that knows one by name.

A family is a model type of transformers: embed_tokens → layers (self_attn, mlp, norms) → norm → lm_head, with
linear projections of Llama's names. What a layer's modules state themselves (head widths, QK-norms, biases,
the scale of queries, layers without rotation) is read from them; see `AttentionShape`.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from evalsuite.foundation import ConfigError
from evalsuite.foundation.registry import Registry
from evalsuite.models.ops.rms_norm import Gain


class BlockNorms(NamedTuple):
    """Names of a block's norms at their four places; None where there is none."""

    mixer_input: str | None
    mixer_output: str | None
    mlp_input: str | None
    mlp_output: str | None


PRE = BlockNorms("input_layernorm", None, "post_attention_layernorm", None)
POST = BlockNorms(None, "post_attention_layernorm", None, "post_feedforward_layernorm")
SANDWICH = BlockNorms(
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Teachers of one architecture."""

    norms: BlockNorms = PRE
    gain: Gain = "rounded_first"
    """How the weight of an RMS norm multiplies."""
    scales_embeddings: bool = False
    """Whether `embed_tokens` multiplies by a constant, which it holds as a buffer."""
    rotary_by_layer_type: bool = False
    """Whether the angles of a layer depend on its type."""
    served_by_vllm: bool = False
    """Whether the blocks are those of vLLM's Llama."""

    def describe(self) -> str:
        """What distinguishes it, in one sentence."""
        places = {PRE: "before", POST: "after", SANDWICH: "before and after"}
        found = [f"norms {places[self.norms]} mixer and MLP" if self.norms in places else "norms of its own"]
        found += ["scaled embeddings"] * self.scales_embeddings
        found += ["rotation by layer type"] * self.rotary_by_layer_type
        return ", ".join(found + ["served by vLLM"] * self.served_by_vllm)


def _validate(family: Family) -> Family:
    if not isinstance(family, Family):
        raise TypeError(f"{family!r} is no Family")
    return family


FAMILIES: Registry[Family] = Registry("family", group="evalsuite.families", validate=_validate)
for _name in ("llama", "mistral", "qwen2", "qwen3"):
    FAMILIES.add(_name, Family(served_by_vllm=True))
FAMILIES.add("smollm3", Family())
FAMILIES.add("olmo2", Family(norms=POST, gain="rounded_last"))
FAMILIES.add("olmo3", Family(norms=POST, gain="rounded_last", rotary_by_layer_type=True))
FAMILIES.add("gemma2", Family(norms=SANDWICH, gain="one_plus", scales_embeddings=True))
FAMILIES.add(
    "gemma3_text",
    Family(norms=SANDWICH, gain="one_plus", scales_embeddings=True, rotary_by_layer_type=True),
)

FOREIGN_WINDOWS = frozenset(
    ("cohere2", "exaone4", "gemma4_text", "ministral", "mixtral", "phi3", "qwen3_moe", "starcoder2")
)
"""Model types besides the families whose windows are those that engine torch computes:
tests/parity/model_families.py compares them with transformers on texts longer than a window."""


def is_supported(config: Any) -> bool:
    """Whether a transformers config is that of a family, as `StudentModel` computes it."""
    return (
        config.model_type in FAMILIES
        and not getattr(config, "use_bidirectional_attention", False)
        and getattr(config, "quantization_config", None) is None
    )


def family_of(model_type: str) -> Family:
    """The family of a model type; ConfigError if it is none."""
    if model_type not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ConfigError(f"teacher architecture '{model_type}' is not supported; supported: {known}")
    return FAMILIES[model_type]
