"""Supported versions of vLLM. Imports nothing, because the engine's subprocess reads it too."""

TESTED = ("0.26", "0.29", "0.32")
"""Minor versions that pass the parity test; the CUDA builds of 0.26.0 are for torch 2.11."""
INSTALL = "vllm>=0.32,<0.33"


def version_problem(version: str) -> str:
    """Describe why a version of vLLM is not supported and what to install; empty if it is."""
    if any(version == tested or version.startswith(f"{tested}.") for tested in TESTED):
        return ""
    oldest, newest = (_minor(tested) for tested in (TESTED[0], TESTED[-1]))
    problem = "not among the tested versions"
    if _minor(version) < oldest:
        problem = "too old"
    elif _minor(version) > newest:
        problem = "newer than the tested versions"
    supported = ", ".join(f"{tested}.*" for tested in TESTED)
    return f"vLLM {version} is {problem}: students were tested with {supported}; pip install '{INSTALL}'"


def _minor(version: str) -> list[int]:
    return [int(part) if part.isdigit() else 0 for part in version.split(".")[:2]]
