"""The selectors by name, without importing what they need."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from evalsuite.foundation import ConfigError, nearest

KL_GUIDED = "KL-guided selection, ICLR 2026"
GENDISTILL = "arXiv 2603.26556"


@dataclass(frozen=True, kw_only=True)
class Selector:
    """One way to choose the layers that stay softmax."""

    name: str
    summary: str
    source: str
    needs: str
    """What it takes: `nothing`, `teacher`, `trunk` (an all-linear student) or `training`."""
    home: str
    """`module:function` in this package; the function takes a Ground and K and returns an Outcome."""
    settings: dict[str, Any] = field(default_factory=dict)

    def load(self) -> Callable[..., Any]:
        """The function."""
        module, _, function = self.home.partition(":")
        found: Callable[..., Any] = getattr(import_module(f"evalsuite.distill.selection.{module}"), function)
        return found


def _guided(name: str, summary: str) -> Selector:
    return Selector(
        name=name,
        summary=f"drop in accuracy when a layer is bypassed: {summary}",
        source=f"{KL_GUIDED}, section 4.2 (2), Table 3",
        needs="teacher",
        home="guided:guided",
        settings={"kind": name},
    )


def _one_swap(name: str, summary: str, home: str, **settings: Any) -> Selector:
    source = f"{KL_GUIDED}, sections 3.2 and 5.1, Table 3"
    return Selector(name=name, summary=summary, source=source, needs="training", home=home, settings=settings)


_ALL = (
    Selector(
        name="uniform",
        summary="layers at equal distances",
        source=f"{KL_GUIDED}, section 4.2 (1); {GENDISTILL}, Appendix D",
        needs="nothing",
        home="static:uniform",
    ),
    Selector(
        name="fixed",
        summary="a published set (--option set=NAME) or a given list (--option layers=[…])",
        source=f"{GENDISTILL}, Table 11; PostNAS, arXiv 2508.15884; {KL_GUIDED}",
        needs="nothing",
        home="static:fixed",
    ),
    _guided("kv", "look a key of a dictionary up"),
    _guided("ar", "add the values of three keys"),
    _guided("ar_mh", "add the values of three keys, some of which name other keys"),
    _guided("vt", "name all variables that come to a value"),
    _guided("cwe", "name the most frequent words of a list"),
    Selector(
        name="act_mse",
        summary="mean squared change of the final hidden states when a layer is bypassed",
        source=f"{KL_GUIDED}, section 4.2 (3), Table 3",
        needs="teacher",
        home="signals:act_mse",
    ),
    Selector(
        name="lm_ppl",
        summary="increase in perplexity on held-out text when a layer is bypassed",
        source=f"{KL_GUIDED}, section 4.2 (3), Table 3",
        needs="teacher",
        home="signals:lm_ppl",
    ),
    Selector(
        name="smart",
        summary="KL won back by a layer, the ends preserved and the rest nearly uniform",
        source=f"{KL_GUIDED}, section 4.2 (4); Zebra-Llama, arXiv 2505.17272",
        needs="trunk",
        home="sensitivity:smart",
    ),
    _one_swap(
        "ga_s1",
        "restore one layer, align briefly, compare hidden states",
        "structural:stage1",
        direction="add",
    ),
    _one_swap(
        "ga_s2",
        "restore one layer, distil briefly, compare held-out KL (Algorithm 1)",
        "structural:stage2",
        direction="add",
    ),
    _one_swap(
        "gr_s1",
        "make one layer linear, align briefly, compare hidden states",
        "structural:stage1",
        direction="remove",
    ),
    _one_swap(
        "gr_s2",
        "make one layer linear, distil briefly, compare held-out KL",
        "structural:stage2",
        direction="remove",
    ),
    _one_swap("avg_s1", "mean of the ranks by gr_s1 and ga_s1", "structural:averaged", stage=1),
    _one_swap("avg_s2", "mean of the ranks by gr_s2 and ga_s2", "structural:averaged", stage=2),
    Selector(
        name="greedy",
        summary="the K layers that alone lower the all-linear student's perplexity most",
        source=f"{GENDISTILL}, Appendix D",
        needs="trunk",
        home="beam:greedy",
    ),
    Selector(
        name="beam_add",
        summary="beam search by perplexity, adding layers to the all-linear student",
        source=f"{GENDISTILL}, section 4.1.1, Appendix D",
        needs="trunk",
        home="beam:beam_add",
    ),
    Selector(
        name="beam_replace",
        summary="beam search by perplexity, replacing layers of the teacher",
        source=f"{GENDISTILL}, Appendix D",
        needs="trunk",
        home="beam:beam_replace",
    ),
)

SELECTORS = {selector.name: selector for selector in _ALL}


def find_selector(name: str) -> Selector:
    """Look a selector up. Raises ConfigError, naming the nearest known one, if there is none."""
    if name not in SELECTORS:
        raise ConfigError(f"unknown selector '{name}'{nearest(name, SELECTORS)}")
    return SELECTORS[name]
