"""Options that several verbs share, written once."""

import argparse
from pathlib import Path


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
