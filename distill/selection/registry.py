"""Registry of selectors; their modules are imported on use."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from evalsuite.foundation import ConfigError, nearest

KL_GUIDED = "KL-guided selection, ICLR 2026"
GENDISTILL = "arXiv 2603.26556"


@dataclass(frozen=True, kw_only=True)
class Selector:
    """A method that selects the layers that stay softmax."""

    name: str
    summary: str
    source: str
    requires: str
    """`nothing`, `teacher`, `all_linear` (an all-linear student) or `training`."""
    function: str
    """`module:function` in this package: (SelectionContext, K, **kwargs) → SelectionResult."""
    kwargs: dict[str, Any] = field(default_factory=dict)

    def load(self) -> Callable[..., Any]:
        """Import and return the function."""
        module, _, function = self.function.partition(":")
        found: Callable[..., Any] = getattr(import_module(f"evalsuite.distill.selection.{module}"), function)
        return found


def _task_selector(name: str, summary: str) -> Selector:
    return Selector(
        name=name,
        summary=f"accuracy drop when a layer is skipped: {summary}",
        source=f"{KL_GUIDED}, section 4.2 (2), Table 3",
        requires="teacher",
        function="skip_layer:synthetic_task",
        kwargs={"task": name},
    )


def _one_swap(name: str, summary: str, function: str, **kwargs: Any) -> Selector:
    source = f"{KL_GUIDED}, sections 3.2 and 5.1, Table 3"
    return Selector(
        name=name, summary=summary, source=source, requires="training", function=function, kwargs=kwargs
    )


_ALL = (
    Selector(
        name="uniform",
        summary="evenly spaced layers",
        source=f"{KL_GUIDED}, section 4.2 (1); {GENDISTILL}, Appendix D",
        requires="nothing",
        function="fixed_sets:uniform",
    ),
    Selector(
        name="fixed",
        summary="a published set (--option set=NAME) or an explicit list (--option layers=[…])",
        source=f"{GENDISTILL}, Table 11; PostNAS, arXiv 2508.15884; {KL_GUIDED}",
        requires="nothing",
        function="fixed_sets:fixed",
    ),
    _task_selector("kv", "look up a key in a dictionary"),
    _task_selector("ar", "add the values of three keys"),
    _task_selector("ar_mh", "add the values of three keys, some defined by other keys"),
    _task_selector("vt", "list all variables with a value"),
    _task_selector("cwe", "list the most frequent words"),
    Selector(
        name="act_mse",
        summary="mean squared change of the final hidden states when a layer is skipped",
        source=f"{KL_GUIDED}, section 4.2 (3), Table 3",
        requires="teacher",
        function="skip_layer:act_mse",
    ),
    Selector(
        name="lm_ppl",
        summary="increase in perplexity on held-out text when a layer is skipped",
        source=f"{KL_GUIDED}, section 4.2 (3), Table 3",
        requires="teacher",
        function="skip_layer:lm_ppl",
    ),
    Selector(
        name="smart",
        summary="KL reduction per restored layer, with terminal preservation and near-uniform spacing",
        source=f"{KL_GUIDED}, section 4.2 (4); Zebra-Llama, arXiv 2505.17272",
        requires="all_linear",
        function="skip_layer:smart",
    ),
    _one_swap(
        "ga_s1",
        "restore one layer, align briefly, compare hidden states",
        "one_swap.selectors:stage1",
        direction="add",
    ),
    _one_swap(
        "ga_s2",
        "restore one layer, distil briefly, compare held-out KL (Algorithm 1)",
        "one_swap.selectors:stage2",
        direction="add",
    ),
    _one_swap(
        "gr_s1",
        "make one layer linear, align briefly, compare hidden states",
        "one_swap.selectors:stage1",
        direction="remove",
    ),
    _one_swap(
        "gr_s2",
        "make one layer linear, distil briefly, compare held-out KL",
        "one_swap.selectors:stage2",
        direction="remove",
    ),
    _one_swap("avg_s1", "mean of the ranks by gr_s1 and ga_s1", "one_swap.selectors:averaged", stage=1),
    _one_swap("avg_s2", "mean of the ranks by gr_s2 and ga_s2", "one_swap.selectors:averaged", stage=2),
    Selector(
        name="greedy",
        summary="the K layers whose restoration alone lowers perplexity most",
        source=f"{GENDISTILL}, Appendix D",
        requires="all_linear",
        function="beam_search:greedy",
    ),
    Selector(
        name="beam_add",
        summary="beam search by perplexity, adding layers to the all-linear student",
        source=f"{GENDISTILL}, section 4.1.1, Appendix D",
        requires="all_linear",
        function="beam_search:beam_add",
    ),
    Selector(
        name="beam_replace",
        summary="beam search by perplexity, replacing layers of the teacher",
        source=f"{GENDISTILL}, Appendix D",
        requires="all_linear",
        function="beam_search:beam_replace",
    ),
)

SELECTORS = {selector.name: selector for selector in _ALL}


def find_selector(name: str) -> Selector:
    """Return a selector by name. Raises ConfigError for an unknown one, with the nearest known name."""
    if name not in SELECTORS:
        raise ConfigError(f"unknown selector '{name}'{nearest(name, SELECTORS)}")
    return SELECTORS[name]
