"""Layer selection: which layers stay softmax, by selectors with one interface.

from evalsuite.distill.selection import Options, select
select(load_recipe("pocket"), "ga_s2", Path("layers.json"), budget=2, mixer="gated_deltanet")
"""

from typing import TYPE_CHECKING, Any

from evalsuite.distill.selection.fixed_sets import published_sets
from evalsuite.distill.selection.options import Options, load_options
from evalsuite.distill.selection.registry import SELECTORS, Selector

if TYPE_CHECKING:
    from evalsuite.distill.selection.run import select

__all__ = ["SELECTORS", "Options", "Selector", "load_options", "published_sets", "select"]


def __getattr__(name: str) -> Any:
    # Torch and transformers take seconds to import, and `show selectors` does not need them.
    if name == "select":
        from importlib import import_module

        return import_module("evalsuite.distill.selection.run").select
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
