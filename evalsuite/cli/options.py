"""Options that several commands share."""

import argparse
import json
from pathlib import Path
from typing import Any

from evalsuite.foundation import ConfigError


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add device and dtype of checkpoints, and trust in their code."""
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 or auto (default: %(default)s)")
    parser.add_argument(
        "--dtype",
        default="auto",
        choices=("auto", "float32", "bfloat16", "float16"),
        help="auto is float32 on a CPU and bfloat16 on CUDA (default: %(default)s)",
    )
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run Python code that comes with a checkpoint"
    )


def add_engine_option(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the inference engine; vLLM runs in a separate Python environment."""
    parser.add_argument(
        "--engine",
        default="torch",
        choices=("torch", "vllm"),
        help=f"{what}; vllm uses the Python interpreter in EVALSUITE_VLLM_PYTHON (default: %(default)s)",
    )
    parser.add_argument(
        "--engine-args",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="arguments of vllm.LLM, e.g. tensor_parallel_size=2 enforce_eager=true; values are JSON or text",
    )


def engine_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return `--engine-args` as a dictionary.

    Raises:
        ConfigError: an argument that is not NAME=VALUE, a repeated name, or an engine without arguments.
    """
    found: dict[str, Any] = {}
    for given in options.engine_args:
        name, equals, value = given.partition("=")
        if not (equals and name.isidentifier()):
            raise ConfigError(f"--engine-args {given}: must be NAME=VALUE, e.g. tensor_parallel_size=2")
        if name in found:
            raise ConfigError(f"--engine-args {name}: given twice")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    if found and options.engine != "vllm":
        raise ConfigError("--engine-args requires --engine vllm")
    return found


def add_data_option(parser: argparse.ArgumentParser) -> None:
    """Add the folder of frozen data."""
    parser.add_argument(
        "--data",
        type=Path,
        help="frozen data, as written by `evalsuite prepare` (default: EVALSUITE_DATA, else the hub)",
    )


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Add the option without progress bars, for logs."""
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
