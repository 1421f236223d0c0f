"""Unsupported vLLM options and students, rejected before vLLM starts its workers."""

from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig

from evalsuite.foundation import ConfigError, MissingDependencyError
from evalsuite.models.decoder import StudentConfig
from evalsuite.models.decoder.families import FAMILIES, family_of
from evalsuite.models.vllm_plugin.meta_model import build_meta_mixers
from evalsuite.models.vllm_plugin.sharding import validate_ranks


class StudentConfigVerifier:
    """Hook by which vLLM lets an architecture verify the full configuration.

    Registered under the architecture's name. It has the two methods of vLLM's `VerifyAndUpdateConfig` without
    inheriting from it, so that it can be imported and tested without vLLM.
    """

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        """Raise ConfigError for unsupported options; the message names the option and the remedy."""
        parallel = vllm_config.parallel_config
        unsupported = {
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
        if found := [option for option, is_set in unsupported.items() if is_set]:
            raise ConfigError(f"students cannot be served with {' or '.join(found)}; leave it out")
        validate_student(vllm_config.model_config.hf_config, parallel.tensor_parallel_size)

    @staticmethod
    def verify_and_update_model_config(model_config: Any) -> None:
        """Set `layer_types`, by which vLLM counts attention and recurrent layers."""
        config = student_config(model_config.hf_config)
        recurrent = [each == "linear_attention" for each in config.layer_types]
        # A sliding window counts as full attention, because the layer itself declares its window. A student
        # without recurrent layers uses "attention": with the other names vLLM 0.26 would expect states.
        attention = "full_attention" if any(recurrent) else "attention"
        # Not by assignment: a field of the teacher's config would be written there.
        vars(config)["layer_types"] = ["linear_attention" if each else attention for each in recurrent]


UNSUPPORTED_ARGS = {
    "quantization": None,
    "enable_lora": False,
    "pipeline_parallel_size": 1,
    "decode_context_parallel_size": 1,
    "prefill_context_parallel_size": 1,
}
"""Engine arguments of vLLM for which students support a single value, and that value."""


def validate_args(arguments: Mapping[str, Any]) -> None:
    """Raise ConfigError for an unsupported engine argument, before vLLM starts."""
    for name, value in UNSUPPORTED_ARGS.items():
        if arguments.get(name, value) != value:
            raise ConfigError(f"students cannot be served with {name} = {arguments[name]}; leave it out")


def student_config(config: Any) -> StudentConfig:
    """Return a student's config; raise ConfigError if another project uses the architecture's name."""
    if not isinstance(config, StudentConfig):
        raise ConfigError(
            f"a config of model_type '{config.model_type}' names the architecture of evalsuite's students; "
            "uninstall evalsuite here, or set VLLM_PLUGINS to the plugins that this model needs"
        )
    return config


def refuse_students(problem: str) -> None:
    """Make loading a student's config in this process raise MissingDependencyError(problem)."""

    class RefusedConfig(StudentConfig):
        def __init__(self, *_: Any, **__: Any) -> None:
            raise MissingDependencyError(problem)

    AutoConfig.register(StudentConfig.model_type, RefusedConfig, exist_ok=True)


def validate_student(config: Any, tp_size: int) -> None:
    """Raise ConfigError for a mixer, activation or tensor-parallel size that cannot be served."""
    activation = getattr(student_config(config).base, "hidden_act", "silu")
    if activation != "silu":
        raise ConfigError(
            f"vLLM's MLP of Llama-style models supports silu, not '{activation}'; use --engine torch"
        )
    if not family_of(config.base.model_type).served_by_vllm:
        served = [name for name, family in FAMILIES.items() if family.served_by_vllm]
        raise ConfigError(
            f"students of {config.base.model_type} teachers cannot be served by vLLM, only those of "
            f"{', '.join(served)}; use --engine torch"
        )
    for mixer in build_meta_mixers(config):
        shape = mixer.attention_shape
        if mixer.served_as == "recurrence":
            validate_ranks(mixer, tp_size)
        elif shape.num_heads % tp_size or (shape.num_kv_heads % tp_size and tp_size % shape.num_kv_heads):
            raise ConfigError(
                f"tensor_parallel_size = {tp_size}: softmax layers have {shape.num_heads} heads on "
                f"{shape.num_kv_heads} key and value heads, which do not divide"
            )
