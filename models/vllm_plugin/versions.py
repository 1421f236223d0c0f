"""The versions of vLLM that the plugin was tested with. Imports nothing: the subprocess reads it too."""

TESTED = "0.32"
"""Of these the equality test holds: 0.32.* (run with 0.32.0)."""
INSTALL = "vllm>=0.32,<0.33"


def version_problem(version: str) -> str:
    """What is wrong with a version of vLLM, and what to do; empty if it was tested."""
    if version == TESTED or version.startswith(f"{TESTED}."):
        return ""
    numbers = [int(part) if part.isdigit() else 0 for part in version.split(".")[:2]]
    wanted = [int(part) for part in TESTED.split(".")]
    age = "too old" if numbers < wanted else "newer than what was tested"
    return f"vLLM {version} is {age}: students were tested with {TESTED}.*; pip install '{INSTALL}'"
