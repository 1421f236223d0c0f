"""Students in vLLM: one out-of-tree model for all mixers, pure or hybrid.

If evalsuite is installed next to vLLM, the entry point `vllm.general_plugins` lets `vllm serve CHECKPOINT`
and `vllm.LLM` load a student's folder directly. The mixers are evalsuite's own modules; vLLM provides pages
for their states.

Importing this package does not import vLLM; `register` runs inside vLLM.
"""

ARCHITECTURE = "StudentForCausalLM"
"""Architecture name in a student's config.json, under which vLLM looks up the model."""
MIXER_OP = "evalsuite_mixer"
"""Custom op in vLLM's namespace that represents one recurrent layer in a compiled graph."""
BACKEND = "evalsuite.models.vllm_plugin.mixer_layer.StateBackend"


def register() -> None:
    """Register students with vLLM. Idempotent, because every vLLM process calls it, possibly more than once.

    With an untested version of vLLM, students are refused when their config is read; other models still load.
    """
    import vllm

    from evalsuite.models.vllm_plugin.validation import StudentConfigVerifier, refuse_students
    from evalsuite.models.vllm_plugin.versions import version_problem

    if problem := version_problem(vllm.__version__):
        refuse_students(problem)
        return
    from vllm import ModelRegistry
    from vllm.config import CompilationConfig
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP
    from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum, register_backend

    # A name instead of the class: importing the model here would initialise CUDA before vLLM forks.
    ModelRegistry.register_model(ARCHITECTURE, "evalsuite.models.vllm_plugin.model:StudentForCausalLM")
    MODELS_CONFIG_MAP[ARCHITECTURE] = StudentConfigVerifier
    register_backend(MambaAttentionBackendEnum.CUSTOM, BACKEND, is_mamba=True)
    # Splits CUDA graphs at the op, because a prefill reads lengths on the host.
    if f"vllm::{MIXER_OP}" not in CompilationConfig._attention_ops:
        CompilationConfig._attention_ops.append(f"vllm::{MIXER_OP}")


__all__ = ["ARCHITECTURE", "BACKEND", "MIXER_OP", "register"]
