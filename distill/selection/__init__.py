"""Layer selection: which layers stay softmax, by selectors with one interface.

from evalsuite.distill.selection import load_selector, select
selector = load_selector("ga_s2", ["tokens=300k"])
select(load_recipe("pocket"), selector, Path("layers.json"), budget=2, mixer="gated_deltanet")
"""

from typing import TYPE_CHECKING, Any

from evalsuite.distill.selection import selectors  # noqa: F401
from evalsuite.distill.selection.selector import SELECTORS, Selector, load_selector

if TYPE_CHECKING:
    from evalsuite.distill.selection.run import select

__all__ = ["SELECTORS", "Selector", "load_selector", "select"]


def __getattr__(name: str) -> Any:
    # Torch and transformers take seconds to import, and `show selectors` does not need them.
    if name == "select":
        from importlib import import_module

        return import_module("evalsuite.distill.selection.run").select
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
