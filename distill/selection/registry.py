"""Registry of selectors: methods that select the layers that stay softmax.

Functions of this package are imported on their first use, since torch takes seconds. A selector of another
package is an entry point in the group `evalsuite.selectors` that names a `Selector`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from evalsuite.foundation.registry import Registry

if TYPE_CHECKING:
    from evalsuite.distill.selection.context import SelectionContext
    from evalsuite.distill.selection.result import SelectionResult

KL_GUIDED = "KL-guided selection, ICLR 2026"
GENDISTILL = "arXiv 2603.26556"


@dataclass(frozen=True, kw_only=True)
class Selector:
    """A method that selects the layers that stay softmax."""

    summary: str
    source: str
    """The paper that it comes from."""
    requires: Literal["nothing", "teacher", "all_linear", "training"]
    """What it measures with: nothing, the teacher, an all-linear student, or candidates that it trains."""
    select: "Callable[[SelectionContext, int], SelectionResult]"
    """Selects K layers."""


def _is_selector(item: Selector) -> Selector:
    if not isinstance(item, Selector):
        raise TypeError(f"{item!r} is not an evalsuite.distill.selection.Selector")
    return item


SELECTORS: Registry[Selector] = Registry("selector", group="evalsuite.selectors", validate=_is_selector)
"""Name → selector."""


def _imported(path: str, **kwargs: Any) -> "Callable[[SelectionContext, int], SelectionResult]":
    """`module:function` of this package, imported when it is called, with `kwargs` as further arguments."""
    module, _, function = path.partition(":")

    def select(context: "SelectionContext", k: int) -> "SelectionResult":
        found = getattr(import_module(f"evalsuite.distill.selection.{module}"), function)
        result: SelectionResult = found(context, k, **kwargs)
        return result

    return select


def _task_selector(name: str, summary: str) -> None:
    SELECTORS.add(
        name,
        Selector(
            summary=f"accuracy drop when a layer is skipped: {summary}",
            source=f"{KL_GUIDED}, section 4.2 (2), Table 3",
            requires="teacher",
            select=_imported("skip_layer:synthetic_task", task=name),
        ),
    )


def _one_swap(name: str, summary: str, function: str, **kwargs: Any) -> None:
    SELECTORS.add(
        name,
        Selector(
            summary=summary,
            source=f"{KL_GUIDED}, sections 3.2 and 5.1, Table 3",
            requires="training",
            select=_imported(f"one_swap.selectors:{function}", **kwargs),
        ),
    )


SELECTORS.add(
    "uniform",
    Selector(
        summary="evenly spaced layers",
        source=f"{KL_GUIDED}, section 4.2 (1); {GENDISTILL}, Appendix D",
        requires="nothing",
        select=_imported("fixed_sets:uniform"),
    ),
)
SELECTORS.add(
    "fixed",
    Selector(
        summary="a published set (--option set=NAME) or an explicit list (--option layers=[…])",
        source=f"{GENDISTILL}, Table 11; PostNAS, arXiv 2508.15884; {KL_GUIDED}",
        requires="nothing",
        select=_imported("fixed_sets:fixed"),
    ),
)
_task_selector("kv", "look up a key in a dictionary")
_task_selector("ar", "add the values of three keys")
_task_selector("ar_mh", "add the values of three keys, some defined by other keys")
_task_selector("vt", "list all variables with a value")
_task_selector("cwe", "list the most frequent words")
SELECTORS.add(
    "act_mse",
    Selector(
        summary="mean squared change of the final hidden states when a layer is skipped",
        source=f"{KL_GUIDED}, section 4.2 (3), Table 3",
        requires="teacher",
        select=_imported("skip_layer:act_mse"),
    ),
)
SELECTORS.add(
    "lm_ppl",
    Selector(
        summary="increase in perplexity on held-out text when a layer is skipped",
        source=f"{KL_GUIDED}, section 4.2 (3), Table 3",
        requires="teacher",
        select=_imported("skip_layer:lm_ppl"),
    ),
)
SELECTORS.add(
    "span_recall",
    Selector(
        summary="greedy search by recall of returning text, with windows in the other layers of the teacher",
        source="this package",
        requires="teacher",
        select=_imported("span_recall:span_recall"),
    ),
)
SELECTORS.add(
    "smart",
    Selector(
        summary="KL reduction per restored layer, with terminal preservation and near-uniform spacing",
        source=f"{KL_GUIDED}, section 4.2 (4); Zebra-Llama, arXiv 2505.17272",
        requires="all_linear",
        select=_imported("skip_layer:smart"),
    ),
)
_one_swap(
    "ga_s1",
    "restore one layer, align briefly, compare hidden states",
    "stage1",
    direction="add",
)
_one_swap(
    "ga_s2",
    "restore one layer, distil briefly, compare held-out KL (Algorithm 1)",
    "stage2",
    direction="add",
)
_one_swap(
    "gr_s1",
    "make one layer linear, align briefly, compare hidden states",
    "stage1",
    direction="remove",
)
_one_swap(
    "gr_s2",
    "make one layer linear, distil briefly, compare held-out KL",
    "stage2",
    direction="remove",
)
_one_swap("avg_s1", "mean of the ranks by gr_s1 and ga_s1", "averaged", stage=1)
_one_swap("avg_s2", "mean of the ranks by gr_s2 and ga_s2", "averaged", stage=2)
SELECTORS.add(
    "greedy",
    Selector(
        summary="the K layers whose restoration alone lowers perplexity most",
        source=f"{GENDISTILL}, Appendix D",
        requires="all_linear",
        select=_imported("beam_search:greedy"),
    ),
)
SELECTORS.add(
    "beam_add",
    Selector(
        summary="beam search by perplexity, adding layers to the all-linear student",
        source=f"{GENDISTILL}, section 4.1.1, Appendix D",
        requires="all_linear",
        select=_imported("beam_search:beam_add"),
    ),
)
SELECTORS.add(
    "beam_replace",
    Selector(
        summary="beam search by perplexity, replacing layers of the teacher",
        source=f"{GENDISTILL}, Appendix D",
        requires="all_linear",
        select=_imported("beam_search:beam_replace"),
    ),
)
