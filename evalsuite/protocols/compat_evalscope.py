"""Every patch of EvalScope and of sympy, which its mathematics uses. Contract tests: `tests/protocols`.

Each function checks the installed version first, because a patch may silently stop to apply in another one.
"""

import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import metadata
from io import BytesIO
from typing import Any

from evalsuite.foundation import MissingDependencyError

VERSIONS = ("1.14.1",)
SYMPY_VERSIONS = ("1.13.3", "1.14.0")
"""Versions that the contract tests were run with."""


@lru_cache
def check_version() -> None:
    """Raise MissingDependencyError for a version of EvalScope or sympy that is not supported."""
    for package, known in (("evalscope", VERSIONS), ("sympy", SYMPY_VERSIONS)):
        found = metadata.version(package)
        if found not in known:
            raise MissingDependencyError(
                f"{package} {found} is not supported: evalsuite patches its internals and is tested with "
                f"{', '.join(known)}; pip install {package}=={known[-1]}"
            )


def replace_data_loading(
    adapter: Any, load_subset: Callable[[str], Any], load_fewshot_subset: Callable[[str], Any]
) -> None:
    """Let an adapter read our documents instead of a hub data set.

    Args:
        adapter: EvalScope's benchmark adapter.
        load_subset, load_fewshot_subset: subset name → EvalScope data set.
    """
    check_version()
    adapter.load_subset = lambda subset, data_loader: load_subset(subset)
    adapter.load_fewshot_subset = lambda subset, data_loader: load_fewshot_subset(subset)


def count_words_for_tokens(adapter: Any) -> None:
    """Let an adapter that counts tokens with tiktoken, which downloads its vocabulary, count words instead.

    MRCR's adapter does. Of its counts, EvalScope makes bins for its own report alone.
    """
    check_version()
    if hasattr(adapter, "enc_name"):
        from evalscope.api.benchmark import DefaultDataAdapter

        adapter.tik_enc = _Words()
        adapter.load = lambda: DefaultDataAdapter.load(adapter)


class _Words:
    """Stands in for an encoding of tiktoken."""

    def encode(self, text: str) -> list[str]:
        return text.split()


def replace_sandbox(adapter: Any, execute: Callable[[str], dict[str, Any]]) -> None:
    """Let an adapter execute code through `execute` instead of its own sandbox, which needs Docker.

    Without a sandbox EvalScope executes code in its own process, without limits.
    """
    check_version()
    from evalscope.benchmarks.live_code_bench import load_utils

    # LiveCodeBench's rows hold pickles, which could execute anything while they are read.
    load_utils.pickle = _TextPickle
    kind = type(adapter)
    adapter.__class__ = type(kind.__name__, (kind,), {"use_sandbox": True})
    adapter.execute_code_in_sandbox = lambda code, **_: execute(code)


class _TextPickle(pickle.Unpickler):
    """Stands in for the module `pickle`, and reads values of built-in types only."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"a pickle of {module}.{name}, where only text may be")

    @classmethod
    def loads(cls, data: bytes) -> Any:
        return cls(BytesIO(data)).load()


@contextmanager
def in_process_math() -> Iterator[None]:
    """Keep EvalScope from forking a process for every formula that it parses.

    It forks to be able to stop; inside `cpu_time_limit` a signal stops sympy and regular expressions alike. A
    thousand responses to GSM8K are then scored in seconds rather than minutes.
    """
    check_version()
    from evalscope.metrics.math import parser

    available = parser.isolation_available
    if threading.current_thread() is threading.main_thread():
        parser.isolation_available = lambda: False
    try:
        yield
    finally:
        parser.isolation_available = available


@contextmanager
def cached_formula_parsing() -> Iterator[None]:
    """Cache EvalScope's parsed formulas.

    The target of a document is parsed for every response to it, and short responses repeat. Parsing takes
    most of the time of scoring GSM8K.
    """
    check_version()
    from evalscope.metrics.math import parser

    original = parser._parse

    @lru_cache(maxsize=100_000)
    def cached(text: str, mode: str) -> tuple[tuple[Any, ...], str]:
        objects, display = original(text, mode)
        return tuple(objects), display

    def parse(text: str, mode: str) -> tuple[list[Any], str]:
        objects, display = cached(text, mode)
        return list(objects), display

    parser._parse = parse
    try:
        yield
    finally:
        parser._parse = original


@contextmanager
def cached_evalf() -> Iterator[None]:
    """Cache the numeric evaluation of sympy expressions for the duration of the block.

    sympy's `evalf_mul` evaluates every factor twice, so a quotient of n quotients, the `124/124/124/…` of a
    degenerate response, takes 2^n steps; cached, it takes about n². Values are unchanged: they depend only on
    the expression, the precision and the options.
    """
    check_version()
    from sympy.core import evalf as module

    original = module.evalf
    known: dict[tuple[Any, int, frozenset[tuple[str, Any]]], Any] = {}

    def cached(expression: Any, precision: int, options: dict[str, Any]) -> Any:
        if "subs" in options:
            return original(expression, precision, options)
        key = (expression, precision, frozenset(options.items()))
        if key not in known:
            known[key] = original(expression, precision, options)
        return known[key]

    module.evalf = cached
    try:
        yield
    finally:
        module.evalf = original
