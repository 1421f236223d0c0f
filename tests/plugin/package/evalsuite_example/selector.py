"""A selector: the last layers stay softmax."""

from evalsuite.distill.selection.context import SelectionContext
from evalsuite.distill.selection.registry import Selector
from evalsuite.distill.selection.result import SelectionResult

EVALSUITE_API = 1


def select_last(context: SelectionContext, k: int) -> SelectionResult:
    """Return the last K layers."""
    return SelectionResult(layers=tuple(range(context.layers - k, context.layers)))


last_layers = Selector(
    summary="the last layers", source="this example", requires="nothing", select=select_last
)
