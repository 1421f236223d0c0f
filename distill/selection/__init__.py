"""Which layers stay softmax: selectors behind one interface.

from evalsuite.distill.selection import Options, select
select(load_recipe("pocket"), "ga_s2", Path("layers.json"), budget=2, mixer="gated_deltanet")
"""

from typing import TYPE_CHECKING, Any

from evalsuite.distill.selection.catalogue import SELECTORS, Selector, find_selector
from evalsuite.distill.selection.fixed import published
from evalsuite.distill.selection.options import Options, load_options

if TYPE_CHECKING:
    from evalsuite.distill.selection.choose import select

__all__ = ["SELECTORS", "Options", "Selector", "find_selector", "load_options", "published", "select"]


def __getattr__(name: str) -> Any:
    # Torch and transformers take seconds to import, and `show selectors` does not need them.
    if name == "select":
        from importlib import import_module

        return import_module("evalsuite.distill.selection.choose").select
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
