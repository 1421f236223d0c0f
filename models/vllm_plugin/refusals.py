"""What a student cannot be served with, refused before vLLM starts its workers."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import AutoConfig

from evalsuite.foundation import ConfigError, MissingDependencyError
from evalsuite.models.mixers import MIXERS, Mixer
from evalsuite.models.student import StudentConfig
from evalsuite.models.vllm_plugin.sharding import check_heads
from evalsuite.models.vllm_plugin.skeleton import attention_geometry, skeleton


class ServedChecks:
    """The hook by which vLLM lets an architecture look at the whole configuration.

    Registered under the architecture's name; vLLM calls the two methods of its own `VerifyAndUpdateConfig`,
    which this does not inherit so that it can be imported, and tested, without vLLM.
    """

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        """Raise ConfigError for what cannot be served; the message names the option and what to do."""
        parallel = vllm_config.parallel_config
        refused = {
            "speculative decoding": vllm_config.speculative_config is not None,
            "LoRA": vllm_config.lora_config is not None,
            "quantization": vllm_config.quant_config is not None,
            "pipeline_parallel_size > 1": parallel.pipeline_parallel_size > 1,
            "decode_context_parallel_size > 1": getattr(parallel, "decode_context_parallel_size", 1) > 1,
            "prefill_context_parallel_size > 1": getattr(parallel, "prefill_context_parallel_size", 1) > 1,
            "disable_hybrid_kv_cache_manager": bool(
                getattr(vllm_config.scheduler_config, "disable_hybrid_kv_cache_manager", False)
            ),
        }
        if found := [what for what, asked in refused.items() if asked]:
            raise ConfigError(f"students cannot be served with {' or '.join(found)}; leave it out")
        check_student(vllm_config.model_config.hf_config, parallel.tensor_parallel_size)

    @staticmethod
    def verify_and_update_model_config(model_config: Any) -> None:
        """Name the layers as vLLM counts them."""
        config = student_config(model_config.hf_config)
        config.layer_types = layer_types(config.mixers)


NEVER = {
    "quantization": None,
    "enable_lora": False,
    "pipeline_parallel_size": 1,
    "decode_context_parallel_size": 1,
    "prefill_context_parallel_size": 1,
}
"""Arguments of vLLM of which students take one value, and that value."""


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise ConfigError for an argument that students cannot be served with, before vLLM starts."""
    for name, value in NEVER.items():
        if arguments.get(name, value) != value:
            raise ConfigError(f"students cannot be served with {name} = {arguments[name]}; leave it out")


def student_config(config: Any) -> StudentConfig:
    """The config, if it is a student's; ConfigError if another project uses our architecture's name."""
    if not isinstance(config, StudentConfig):
        raise ConfigError(
            f"a config of model_type '{config.model_type}' names the architecture of evalsuite's students; "
            "uninstall evalsuite here, or set VLLM_PLUGINS to the plugins that this model needs"
        )
    return config


def layer_types(mixers: Sequence[str]) -> list[str]:
    """vLLM's words for layers; it knows two of those that keep a state beside others.

    A sliding window counts as full attention: the layer itself says how much of it is kept. Where nothing but
    attention is, a third word says so to every version: 0.26 would look for states with the others.
    """
    recurrent = [issubclass(MIXERS[mixer], Mixer) for mixer in mixers]
    attention = "full_attention" if any(recurrent) else "attention"
    return ["linear_attention" if keeps else attention for keeps in recurrent]


def refuse_students(problem: str) -> None:
    """Make reading a student's config in this process raise MissingDependencyError(problem)."""

    class RefusedConfig(StudentConfig):
        def __init__(self, *_: Any, **__: Any) -> None:
            raise MissingDependencyError(problem)

    AutoConfig.register(StudentConfig.model_type, RefusedConfig, exist_ok=True)


def check_student(config: Any, ranks: int) -> None:
    """Raise ConfigError for a mixer, activation or number of ranks that the served model cannot run."""
    activation = getattr(student_config(config).base, "hidden_act", "silu")
    if activation != "silu":
        raise ConfigError(
            f"vLLM's MLP of Llama-style models knows silu, not '{activation}'; use --engine torch"
        )
    layers = skeleton(config)
    for mixer, geometry in zip(layers, attention_geometry(config, layers), strict=True):
        if isinstance(mixer, Mixer):
            check_heads(mixer.name, mixer.geometry, mixer.kv_heads, ranks)
        elif geometry is not None and (
            geometry.heads % ranks or (geometry.kv_heads % ranks and ranks % geometry.kv_heads)
        ):
            raise ConfigError(
                f"tensor_parallel_size = {ranks}: softmax layers have {geometry.heads} heads on "
                f"{geometry.kv_heads} key and value heads, which do not divide"
            )
