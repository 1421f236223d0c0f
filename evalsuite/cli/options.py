"""Options that several verbs share, written once."""

import argparse
import json
from pathlib import Path
from typing import Any

from evalsuite.foundation import ConfigError


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Where and in which precision a checkpoint is loaded."""
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 or auto (default: %(default)s)")
    parser.add_argument(
        "--dtype",
        default="auto",
        choices=("auto", "float32", "bfloat16", "float16"),
        help="auto is float32 on a CPU and bfloat16 on CUDA (default: %(default)s)",
    )
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run Python that a checkpoint brings along"
    )


def add_engine_option(parser: argparse.ArgumentParser, what: str) -> None:
    """Which engine answers; vLLM has a Python of its own."""
    parser.add_argument(
        "--engine",
        default="torch",
        choices=("torch", "vllm"),
        help=f"{what}; vllm runs in the Python that EVALSUITE_VLLM_PYTHON names (default: %(default)s)",
    )
    parser.add_argument(
        "--engine-args",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="for vllm.LLM, as in tensor_parallel_size=2 enforce_eager=true; values are JSON or words",
    )


def engine_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """What `--engine-args` gives, by name.

    Raises:
        ConfigError: not NAME=VALUE, a name given twice, or an engine that takes none.
    """
    found: dict[str, Any] = {}
    for given in options.engine_args:
        name, equals, value = given.partition("=")
        if not (equals and name.isidentifier()):
            raise ConfigError(f"--engine-args {given}: write NAME=VALUE, as in tensor_parallel_size=2")
        if name in found:
            raise ConfigError(f"--engine-args {name}: given twice")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    if found and options.engine != "vllm":
        raise ConfigError("--engine-args are vLLM's; add --engine vllm")
    return found


def add_data_option(parser: argparse.ArgumentParser) -> None:
    """Where frozen data lies."""
    parser.add_argument(
        "--data",
        type=Path,
        help="frozen data, as written by `evalsuite prepare` (default: EVALSUITE_DATA, else the hub)",
    )


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """No progress bars, for logs."""
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
