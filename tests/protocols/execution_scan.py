"""Static scan of EvalScope's benchmarks: why the source of one may execute code."""

import ast
import inspect
import sys
from functools import cache
from pathlib import Path

CALLS = {"exec", "eval", "compile", "__import__"}
METHODS = {"system", "popen", "Popen", "exec", "fork", "execute_code_in_sandbox"}
MODULES = {
    "ctypes",
    "importlib",
    "marshal",
    "multiprocessing",
    "pickle",
    "runpy",
    "shelve",
    "socket",
    "sqlite3",
    "subprocess",
}
LIBRARIES = {"emoji", "evalscope", "langdetect", "nltk", "numpy", "pydantic", "scipy", "syllapy", "tiktoken"}
"""Third-party packages without a function that executes text."""


def reasons(name: str) -> list[str]:
    """Return the calls, imports and base classes of an EvalScope benchmark that may execute code."""
    from evalscope.api.registry import BENCHMARK_REGISTRY

    adapter = BENCHMARK_REGISTRY[name].data_adapter
    found = {f"base {base.__name__}" for base in adapter.__mro__ if _executes(base.__name__)}
    for base in adapter.__mro__:
        if base.__module__.startswith("evalscope.benchmarks."):
            for path in Path(inspect.getfile(base)).parent.rglob("*.py"):
                found |= _scan(path)
    return sorted(found)


def _executes(base: str) -> bool:
    return any(word in base for word in ("Sandbox", "Agent", "MultiTurn"))


@cache
def _scan(path: Path) -> frozenset[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in CALLS:
                found.add(f"{path.name} calls {called.id}")
            if isinstance(called, ast.Attribute) and called.attr in METHODS:
                found.add(f"{path.name} calls .{called.attr}")
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [str(node.module)]
        for name in names:
            top = name.partition(".")[0]
            unknown = top not in LIBRARIES and top not in sys.stdlib_module_names
            if top in MODULES or unknown or (top == "evalscope" and ("agent" in name or "sandbox" in name)):
                found.add(f"{path.name} imports {name}")
    return frozenset(found)
