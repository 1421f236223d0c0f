"""A selector: the last layers stay softmax."""

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from evalsuite.distill.selection import Selector
from evalsuite.distill.selection.result import SelectionResult
from evalsuite.distill.selection.selector import Requirement

if TYPE_CHECKING:
    from evalsuite.distill.selection.context import SelectionContext

EVALSUITE_API = 1


class LastLayers(Selector):
    """The last layers."""

    source: ClassVar[str] = "this example"
    requires: ClassVar[Requirement] = "nothing"

    skip: int = Field(default=0, ge=0)
    """Linear layers after them."""

    def select(self, context: "SelectionContext", k: int) -> SelectionResult:
        end = context.layers - self.skip
        return SelectionResult(layers=tuple(range(end - k, end)))
