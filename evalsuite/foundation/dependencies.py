"""Which extra of evalsuite installs which package, and which versions are installed."""

from collections.abc import Iterable
from functools import cache
from importlib import metadata

from evalsuite.foundation.errors import MissingDependencyError

_EVAL = {"evalscope", "langdetect", "lm_eval", "rouge", "wonderwords"}
_MODELS = {
    "accelerate",
    "datasets",
    "gguf",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
    "zstandard",
}
_EXTRAS = {
    "fla": "gpu",
    "ray": "ray",
    "submitit": "slurm",
    "tensorboard": "track",
    "torchao": "lowbit",
    "trackio": "track",
    "triton": "gpu",
    "vllm": "vllm",
}


def missing_dependency(error: ModuleNotFoundError, verb: str) -> MissingDependencyError | None:
    """Return the error that names the extra to install; None if the module is no optional dependency.

    `verb` is the command that needs it: packages that load a model belong to `eval` and to `distill`.
    """
    package = (error.name or "").split(".")[0]
    if package in _MODELS:
        extra = "distill" if verb in ("distill", "select") else "eval"
    elif package in _EVAL:
        extra = "eval"
    elif package in _EXTRAS:
        extra = _EXTRAS[package]
    else:
        return None
    return MissingDependencyError(f"package '{package}' is not installed: pip install 'evalsuite[{extra}]'")


@cache
def package_version(package: str) -> str | None:
    """Version of an installed package, None without it; parsing its metadata takes milliseconds, so once."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of those of the packages that are installed."""
    found = ((package, package_version(package)) for package in packages)
    return {package: version for package, version in found if version is not None}
