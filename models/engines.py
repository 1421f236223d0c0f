"""Engines by name: evalsuite's own and those of other packages."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evalsuite.foundation import ConfigError
from evalsuite.foundation.registry import ClassRegistry
from evalsuite.models.inference import registry
from evalsuite.models.inference.registry import EngineType

if TYPE_CHECKING:
    from evalsuite.models.inference.registry import ENGINES as ENGINES


def load_engines() -> ClassRegistry[EngineType]:
    """Return the registry once evalsuite's own engines are in it.

    They import torch and transformers, which readers of requests and responses do without.
    """
    import evalsuite.models.inference.endpoint.engine
    import evalsuite.models.inference.torch.engine
    import evalsuite.models.inference.transformers.engine
    import evalsuite.models.inference.vllm.engine  # noqa: F401

    return registry.ENGINES


def engine_type(name: str, arguments: Mapping[str, Any], max_length: int | None = None) -> type[EngineType]:
    """Look up an engine, and check that it takes `arguments` and reads `max_length` positions.

    Raises:
        ConfigError: no such engine, a plugin that cannot be used, arguments for an engine without any, or
            more positions than configs state for an engine that ends there.
    """
    kind = load_engines().get_or_raise(name)
    if max_length is not None and not kind.extends_positions:
        raise ConfigError(
            f"'max_length' (--max-length) = {max_length}: engine {name} reads no more positions than a "
            "checkpoint's config states; choose another, such as --engine torch, or leave --max-length out"
        )
    if arguments and not kind.arguments_help:
        raise ConfigError(f"engine {name} takes no arguments, such as {next(iter(arguments))}")
    return kind


def __getattr__(name: str) -> Any:
    if name == "ENGINES":
        return load_engines()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
