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

TESTED = ("0.26", "0.29", "0.32")
"""Minor versions that pass the parity test; the CUDA builds of 0.26.0 are for torch 2.11."""
INSTALL = "vllm>=0.32,<0.33"


def register() -> None:
    """Register students with vLLM. Idempotent, because every vLLM process calls it, possibly more than once.

    With an untested version of vLLM, students are refused when their config is read; other models still load.
    """
    import vllm

    from evalsuite.models.vllm_plugin.validation import StudentConfigVerifier, refuse_students

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


def version_problem(version: str) -> str:
    """Describe why a version of vLLM is not supported and what to install; empty if it is."""
    found, tested = _minor(version), [_minor(each) for each in TESTED]
    if found in tested:
        return ""
    problem = "too old" if found < tested[0] else "not among the tested versions"
    problem = "newer than the tested versions" if found > tested[-1] else problem
    supported = ", ".join(f"{each}.*" for each in TESTED)
    return f"vLLM {version} is {problem}: students were tested with {supported}; pip install '{INSTALL}'"


def _minor(version: str) -> list[int]:
    return [int(part) if part.isdigit() else 0 for part in version.split(".")[:2]]


__all__ = ["ARCHITECTURE", "BACKEND", "INSTALL", "MIXER_OP", "register", "version_problem"]
