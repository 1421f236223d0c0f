"""Options that several commands share."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evalsuite.foundation import ConfigError, parse_json
from evalsuite.foundation.files import DuplicateKeyError


def without_defaults(parser: argparse.ArgumentParser) -> None:
    """Leave arguments that are not given out of the namespace: a configuration file may state them."""
    for action in parser._actions:
        if action.dest != "help":
            action.default = argparse.SUPPRESS


def given_options(arguments: argparse.Namespace, *others: str) -> dict[str, Any]:
    """Return the arguments that are given, without the command's own and `others`."""
    return {key: value for key, value in vars(arguments).items() if key not in ("verb", "call", *others)}


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add device and dtype of checkpoints, and trust in their code."""
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 or auto (default: auto)")
    parser.add_argument(
        "--dtype",
        default="auto",
        choices=("auto", "float32", "bfloat16", "float16"),
        help="auto is float32 on a CPU and bfloat16 on CUDA (default: auto)",
    )
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run Python code that comes with a checkpoint, or with a task file outside lm-eval",
    )


def add_engine_option(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the inference engine, by its name in the registry of engines."""
    parser.add_argument(
        "--engine",
        default="torch",
        metavar="NAME",
        help=f"{what}: torch, vllm (in the Python environment of EVALSUITE_VLLM_PYTHON) or one of another "
        "package; see `evalsuite show engines` (default: torch)",
    )
    parser.add_argument(
        "--engine-args",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="the engine's own arguments, for vllm those of vllm.LLM, e.g. tensor_parallel_size=2 "
        "enforce_eager=true; values are JSON or text",
    )


def add_executor_options(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the executor, by its name in the registry of executors."""
    parser.add_argument(
        "--executor",
        default="local",
        metavar="NAME",
        help=f"where {what}: `evalsuite show executors` (default: local)",
    )
    parser.add_argument(
        "--executor-args",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="the executor's own arguments, e.g. num_workers=4 address=auto for ray",
    )


def add_recipe_options(parser: argparse.ArgumentParser) -> None:
    """Add the recipe, its overrides and data, and the device: the same for `distill` and `select`."""
    parser.add_argument("recipe", help="a name from `evalsuite show recipes`, or a YAML file")
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override recipe fields, e.g. stages.kd.lr=1e-3 seed=2",
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="value of $EVALSUITE_DATA in the recipe")
    parser.add_argument("--device", help="cpu, cuda or cuda:1 (default: cuda if there is one)")


def set_recipe_data(options: argparse.Namespace) -> None:
    """Give $EVALSUITE_DATA the value of `--data`."""
    if options.data is not None:
        os.environ["EVALSUITE_DATA"] = str(options.data)


def executor_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return `--executor-args` as a dictionary, as `named_values`."""
    return named_values(options.executor_args, "--executor-args", "num_workers=4")


def engine_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return `--engine-args` as a dictionary, as `named_values`."""
    return named_values(options.engine_args, "--engine-args", "tensor_parallel_size=2")


def named_values(given: Sequence[str], flag: str, example: str) -> dict[str, Any]:
    """Return NAME=VALUE arguments as a dictionary; values are JSON or text.

    Raises:
        ConfigError: an argument that is not NAME=VALUE, or a repeated name.
    """
    found: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not (equals and name.isidentifier()):
            raise ConfigError(f"{flag} {each}: must be NAME=VALUE, e.g. {example}")
        if name in found:
            raise ConfigError(f"{flag} {name}: given twice")
        try:
            found[name] = parse_json(value, allow_nan=True)
        except DuplicateKeyError as error:
            raise ConfigError(f"{flag} {each}: {error}") from None
        except ValueError:
            found[name] = value
    return found


def add_selection_options(parser: argparse.ArgumentParser) -> None:
    """Add what of the runs is compared: the same options for `compare` and `gate`."""
    parser.add_argument(
        "--teacher",
        metavar="NAME",
        help="the only teacher: its label, weights_id or path (default: the teachers of the plans)",
    )
    parser.add_argument(
        "--checkpoint",
        dest="checkpoints",
        nargs="+",
        default=[],
        metavar="NAME",
        help="only these checkpoints of the runs (labels, weights_ids or paths), each with its teacher "
        "(default: all)",
    )
    parser.add_argument(
        "--same",
        nargs="+",
        default=[],
        metavar="LABEL[=NAME,NAME]",
        help="what is one checkpoint: LABEL, the same weights under several engines, dtypes, devices or "
        "versions; LABEL=NAME,NAME, one model that several harnesses evaluated (default: each is its own)",
    )
    parser.add_argument(
        "--min-coverage",
        type=fraction,
        metavar="X",
        help="admit partial cells with at least this fraction of the planned documents, e.g. 0.9; the first "
        "responses of an interrupted run are no random sample (default: 1, incomplete cells are unmeasured)",
    )
    parser.add_argument(
        "--errors",
        choices=("wrong", "exclude"),
        help="responses that are errors count as wrong (default), or their documents are excluded",
    )


def fraction(text: str) -> float:
    """Parse a number above 0 and at most 1. Raises ArgumentTypeError for anything else."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0 and at most 1")
    return value


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
