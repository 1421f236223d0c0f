"""The versions of vLLM that the plugin was tested with. Imports nothing: the subprocess reads it too."""

TESTED = ("0.26", "0.32")
"""Of these the equality test holds: run with 0.26.0, whose CUDA builds are for torch 2.11, and 0.32.0."""
INSTALL = "vllm>=0.32,<0.33"


def version_problem(version: str) -> str:
    """What is wrong with a version of vLLM, and what to do; empty if it was tested."""
    if any(version == tested or version.startswith(f"{tested}.") for tested in TESTED):
        return ""
    oldest, newest = (_numbers(tested) for tested in (TESTED[0], TESTED[-1]))
    what = "not among those tested"
    if _numbers(version) < oldest:
        what = "too old"
    elif _numbers(version) > newest:
        what = "newer than what was tested"
    known = " and ".join(f"{tested}.*" for tested in TESTED)
    return f"vLLM {version} is {what}: students were tested with {known}; pip install '{INSTALL}'"


def _numbers(version: str) -> list[int]:
    return [int(part) if part.isdigit() else 0 for part in version.split(".")[:2]]
