"""Students in vLLM: one out-of-tree model for every mixer, pure or hybrid.

Installed beside vLLM, the entry point `vllm.general_plugins` makes `vllm serve CHECKPOINT` and `vllm.LLM`
take a student's folder as it is. The mixers are our own modules; vLLM gives them pages for their states.

Importing this does not import vLLM; `register` runs inside it.
"""

ARCHITECTURE = "StudentForCausalLM"
"""The name in a student's config.json under which vLLM looks for the model."""
MIXER_OP = "evalsuite_mixer"
"""The custom op in vLLM's namespace that one recurrent layer is to a compiled graph."""
BACKEND = "evalsuite.models.vllm_plugin.mixer_layer.StateBackend"


def register() -> None:
    """Make vLLM know students. Called in every process of vLLM, perhaps more than once.

    With a version of vLLM that was not tested, students are refused when their config is read; other models
    go on working.
    """
    import vllm

    from evalsuite.models.vllm_plugin.refusals import ServedChecks, refuse_students
    from evalsuite.models.vllm_plugin.versions import version_problem

    if problem := version_problem(vllm.__version__):
        refuse_students(problem)
        return
    from vllm import ModelRegistry
    from vllm.config import CompilationConfig
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP
    from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum, register_backend

    # A name and not the class: importing the model here would start CUDA before vLLM forks.
    ModelRegistry.register_model(ARCHITECTURE, "evalsuite.models.vllm_plugin.model:StudentForCausalLM")
    MODELS_CONFIG_MAP[ARCHITECTURE] = ServedChecks
    register_backend(MambaAttentionBackendEnum.CUSTOM, BACKEND, is_mamba=True)
    # CUDA graphs are cut here, so that a prefill's op, which reads lengths on the host, stays outside.
    if f"vllm::{MIXER_OP}" not in CompilationConfig._attention_ops:
        CompilationConfig._attention_ops.append(f"vllm::{MIXER_OP}")


__all__ = ["ARCHITECTURE", "BACKEND", "MIXER_OP", "register"]
