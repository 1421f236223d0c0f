"""One-swap selection: a layer's score is that of a briefly trained student with this layer alone swapped.

`ga_s1`, `ga_s2`, `gr_s1`, `gr_s2`, `avg_s1`, `avg_s2` of KL-guided selection (Table 3; sections 3.2 and 5.1).
Addition (GA) starts from the all-linear student and restores one layer; removal (GR) starts from the teacher
and makes one layer linear. S1 scores the hidden-state distance after alignment, S2 the KL divergence after
knowledge distillation. Alignment feeds each layer the teacher's input, so it is the same for every swap and
shared.

By default every layer is scored once and the top K are selected (Algorithm 1; Eq. 6, section 3.3). Option
`iterative` decides one layer per round (Table 3: "iteratively converts the layer to softmax that helps
performance most", "... to linear that hurts performance least"). The paper uses one name for both and does
not state which its tables report, nor whether a round continues from the weights of the one before. Here each
round starts from the same aligned student, so that all candidates have the same training. GA takes K rounds,
GR as many as layers become linear. In stage 2 the early-stop rule ends a round once its layer is decided.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import Field

from evalsuite.distill.recipe.config import Tokens
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.selection.layer_sets import (
    Direction,
    StopRule,
    jaccard,
    one_swap_jaccard,
    ranks,
    top_layers,
)
from evalsuite.distill.selection.result import Cost, SelectionResult, Snapshot
from evalsuite.distill.selection.selector import KL_GUIDED, SELECTORS, Requirement, Selector
from evalsuite.foundation import ConfigError
from evalsuite.foundation.strict import parse

if TYPE_CHECKING:
    from evalsuite.distill.selection.context import SelectionContext
    from evalsuite.distill.selection.one_swap_training import OneSwap

StageKind = TypeVar("StageKind", bound=Stage)

DEFAULT_FRACTION = 10
"""Shortened stages have one tenth of the tokens of the recipe's stages by default."""
NUM_WINDOWS = 2
"""Windows of snapshots in a pass that may stop early; with a single one, it could only stop at its end."""
ROUNDS_MEASURE: dict[Direction, str] = {
    "add": "rounds with this layer restored: all for the first one, 0 if never restored",
    "remove": "rounds with this layer still softmax: 0 for the first made linear, all if never made linear",
}


@dataclass(frozen=True, kw_only=True)
class Round:
    """One decision of an iterative selection."""

    scores: Mapping[int, float]
    """Importance of the undecided layers."""
    tokens: int = 0
    """Training tokens of one candidate."""
    seconds: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)


class OneSwapSelector(Selector):
    """Importance of a layer: that of a briefly trained student with this layer alone swapped."""

    source: ClassVar[str] = f"{KL_GUIDED}, sections 3.2 and 5.1, Table 3"
    requires: ClassVar[Requirement] = "training"
    measures: ClassVar[Mapping[Direction, str]]
    """Description of the scores."""
    direction: ClassVar[Direction | None]
    """None: the mean of the ranks by both."""

    align_tokens: Annotated[int, Field(ge=0)] | Tokens | None = None
    """Tokens of the shared alignment; default: a tenth of the first alignment stage."""
    batch_size: int | None = Field(default=None, gt=0)
    """Sequences per step of one-swap training; by default those of the stages."""
    snapshot_interval: int = Field(default=50, gt=0)
    """Steps between snapshots of the top-K set (Appendix B)."""
    iterative: bool = False
    """Decide one layer per round (Table 3) instead of scoring every layer once (Algorithm 1)."""

    @abstractmethod
    def rank(self, context: "SelectionContext", k: int, direction: Direction) -> SelectionResult:
        """Score every layer once and select the top K."""

    @abstractmethod
    def score_round(
        self, context: "SelectionContext", direction: Direction
    ) -> Callable[[Sequence[int]], Round]:
        """Return the function that scores the undecided layers, given the decided ones."""

    def align_stage(self, context: "SelectionContext") -> Stage | None:
        """The recipe's first alignment stage with fewer tokens; None without alignment.

        Raises:
            ConfigError: too few tokens for one step.
        """
        stages = context.training_recipe.stages
        own = next((stage for stage in stages if stage.is_layerwise), None)
        if own is None or self.align_tokens == 0:
            return None
        return self._shorten(own, self.align_tokens, "align_tokens")

    def align_tokens_spent(self, context: "SelectionContext") -> int:
        """Tokens of the alignment."""
        stage = self.align_stage(context)
        return 0 if stage is None else stage.steps * stage.tokens_per_step

    def planned_tokens(self, context: "SelectionContext") -> int:
        """Tokens of the complete training of one candidate after the alignment."""
        return 0

    def training(self, context: "SelectionContext") -> "OneSwap":
        """The trainings of this selection."""
        from evalsuite.distill.selection.one_swap_training import OneSwap

        return OneSwap(context, self.align_stage(context), self.snapshot_interval)

    def _shorten(self, stage: StageKind, tokens: int | None, option: str) -> StageKind:
        size = self.batch_size or stage.batch_size
        value = stage.model_dump()
        value["batch_size"] = size
        if self.batch_size is not None and stage.micro_batch_size:
            value["micro_batch_size"] = min(stage.micro_batch_size, size)
        value["tokens"] = (
            tokens if tokens is not None else max(stage.tokens // DEFAULT_FRACTION, size * stage.seq_len)
        )
        return parse(value, type(stage), f"--option {option}")

    def select(self, context: "SelectionContext", k: int) -> SelectionResult:
        search = self._decide_in_rounds if self.iterative else self.rank
        if self.direction is not None:
            return search(context, k, self.direction)
        directions: tuple[Direction, ...] = ("add", "remove")
        parts = {each: search(context, k, each) for each in directions}
        one, other = (ranks(part.scores) for part in parts.values())
        scores = tuple(-(a + b) / 2 for a, b in zip(one, other, strict=True))
        return SelectionResult(
            layers=top_layers(scores, k),
            scores=scores,
            measure="minus the mean rank of this layer in removal and addition",
            cost=self._joint_cost(context, [part.cost for part in parts.values()]),
            details={
                direction: {"layers": list(part.layers), "scores": list(part.scores)}
                for direction, part in parts.items()
            },
        )

    def _cost(self, context: "SelectionContext", passes: Sequence[tuple[int, int]], seconds: float) -> Cost:
        """Cost of passes, each given as the number of candidates and the tokens that each of them read."""
        aligned, planned = self.align_tokens_spent(context), self.planned_tokens(context)
        candidates = sum(number for number, _ in passes)
        return Cost(
            student_tokens=aligned + sum(number * tokens for number, tokens in passes),
            teacher_tokens=aligned + sum(tokens for _, tokens in passes),
            tokens_without_early_stop=aligned + candidates * planned,
            tokens_without_sharing=candidates * (aligned + planned),
            all_linear_tokens=context.all_linear_tokens,
            seconds=seconds + self.training(context).alignment_seconds,
        )

    def _joint_cost(self, context: "SelectionContext", costs: Sequence[Cost]) -> Cost:
        """Cost of two directions, which share the alignment."""
        aligned = self.align_tokens_spent(context)
        return Cost(
            student_tokens=sum(cost.student_tokens for cost in costs) - aligned,
            teacher_tokens=sum(cost.teacher_tokens for cost in costs) - aligned,
            tokens_without_early_stop=sum(cost.tokens_without_early_stop for cost in costs) - aligned,
            tokens_without_sharing=sum(cost.tokens_without_sharing for cost in costs),
            all_linear_tokens=context.all_linear_tokens,
            seconds=sum(cost.seconds for cost in costs) - self.training(context).alignment_seconds,
        )

    def _stability(self, history: Sequence[Snapshot], k: int, rule: StopRule) -> dict[str, Any]:
        """The last window of top-K sets, and the share of snapshots within one swap of the last one."""
        sets = [snapshot.layers for snapshot in history]
        window = rule.last(sets)
        near = [jaccard(each, sets[-1]) >= one_swap_jaccard(k) - 1e-12 for each in sets]
        return {
            "window": {
                "snapshots": len(window.sets),
                "jaccard": window.jaccard,
                "backbone": window.backbone,
                "union": window.union,
            },
            "within_one_swap_of_last": sum(near) / len(near),
            "step": history[-1].step,
            "scores": [list(snapshot.scores) for snapshot in history],
        }

    def _decide_in_rounds(self, context: "SelectionContext", k: int, direction: Direction) -> SelectionResult:
        """Decide one layer per round; the score of a layer is the round that decided it."""
        num_rounds = k if direction == "add" else context.layers - k
        score, every = self.score_round(context, direction), range(context.layers)
        decided: list[int] = []
        rounds: list[Round] = []
        passes: list[tuple[int, int]] = []
        history: list[Snapshot] = []
        for number in range(num_rounds):
            rounds.append(score(decided))
            # The layer that helps most, or hurts least; the first one on ties.
            sign = 1.0 if direction == "add" else -1.0
            decided += top_layers([sign * rounds[-1].scores.get(layer, nan) for layer in every], 1)
            passes = [(len(each.scores), each.tokens) for each in rounds]
            rest = [layer for layer in every if layer not in decided]
            spent = self.align_tokens_spent(context) + sum(count * tokens for count, tokens in passes)
            layers = tuple(sorted(decided) if direction == "add" else rest)
            history.append(Snapshot(step=number + 1, tokens=spent, layers=layers))
        when = {layer: number for number, layer in enumerate(decided)}
        at = [when.get(layer, num_rounds) for layer in every]
        return SelectionResult(
            layers=history[-1].layers if history else tuple(every),
            scores=tuple(float(num_rounds - i if direction == "add" else i) for i in at),
            measure=ROUNDS_MEASURE[direction],
            history=tuple(history),
            cost=self._cost(context, passes, sum(each.seconds for each in rounds)),
            details={
                "rounds": [
                    {"layer": layer, "scores": [each.scores.get(i) for i in every], **each.details}
                    for layer, each in zip(decided, rounds, strict=True)
                ]
            },
        )


class AlignmentSelector(OneSwapSelector):
    """Stage 1: the hidden-state distance after brief alignment."""

    measures: ClassVar[Mapping[Direction, str]] = {
        "add": "minus the hidden-state distance (Eq. 4) with this layer alone restored, after alignment",
        "remove": "hidden-state distance (Eq. 4) with this layer alone linear, after alignment",
    }

    def align_stage(self, context: "SelectionContext") -> Stage:
        """The shortened alignment stage. Raises ConfigError if there is none."""
        stage = super().align_stage(context)
        if stage is None:
            raise ConfigError(
                "stage-1 selectors score layers after alignment: the recipe needs an alignment stage, and "
                "--option align_tokens must be above 0"
            )
        return stage

    def rank(self, context: "SelectionContext", k: int, direction: Direction) -> SelectionResult:
        history = self.training(context).alignment(scored=True).run(k, direction)
        return SelectionResult(
            layers=history[-1].layers,
            scores=history[-1].scores,
            measure=self.measures[direction],
            history=tuple(history),
            stopped_early=False,
            cost=self._cost(context, [(context.layers, 0)], 0.0),
            details=self._stability(history, k, StopRule()),
        )

    def score_round(
        self, context: "SelectionContext", direction: Direction
    ) -> Callable[[Sequence[int]], Round]:
        """One alignment serves all rounds, which only measure (Eq. 4)."""
        from evalsuite.distill.selection.hybrids import swap_layers
        from evalsuite.distill.selection.one_swap_training import SIGNS

        all_linear = self.training(context).all_linear()
        about = {"stage": self.align_stage(context).model_dump(mode="json"), **context.settings}
        progress_log = context.progress_log(f"align-rounds-{direction}", about)
        known = {tuple(row["layers"]): row["score"] for row in progress_log.rows}

        def score(decided: Sequence[int]) -> Round:
            undecided = [layer for layer in range(context.layers) if layer not in decided]
            swaps = {layer: tuple(sorted([*decided, layer])) for layer in undecided}
            missing = {
                layers: swap_layers(direction, all_linear, context.all_softmax, layers)
                for layers in swaps.values()
                if layers not in known
            }
            for layers, distance in context.held_out.hidden_distances(missing).items():
                known[layers] = SIGNS[direction] * distance
                progress_log.append({"layers": layers, "score": known[layers]})
            return Round(scores={layer: known[layers] for layer, layers in swaps.items()})

        return score


class DistillationSelector(OneSwapSelector):
    """Stage 2: held-out KL after brief distillation (Algorithm 1).

    The time covers alignment, training and scoring up to the stop, without loading models or distilling the
    all-linear student.
    """

    measures: ClassVar[Mapping[Direction, str]] = {
        "add": "minus KL(teacher ‖ student) with this layer alone restored, nats per token, after "
        "distillation",
        "remove": "KL(teacher ‖ student) with this layer alone linear, nats per token, after distillation",
    }

    tokens: Tokens | None = None
    """Knowledge-distillation tokens per one-swap student; default: a tenth of the recipe's first kd stage or,
    with `early_stop` and where the stage has as many, two windows of snapshots."""
    early_stop: bool = True
    """Stop knowledge distillation once the top-K set is stable (Appendix B)."""
    window: int = Field(default=10, gt=1)
    """Number of snapshots that must agree."""
    stop_on_last_slot_tie: bool = False
    """Also stop when two layers alternate in the last slot (Appendix B, optional rule; see `StopRule`)."""
    save_state: bool = True
    """Save the one-swap students periodically and at the end, 12 bytes per trained parameter each, so that
    training can be resumed or extended. Otherwise an interrupted training restarts."""

    @property
    def rule(self) -> StopRule:
        """Early-stop rule with these settings."""
        return StopRule(window=self.window, stop_on_last_slot_tie=self.stop_on_last_slot_tie)

    @property
    def applied_rule(self) -> StopRule | None:
        """The rule, unless early stopping is off."""
        return self.rule if self.early_stop else None

    def shorten(self, stage: StageKind) -> StageKind:
        """Return a knowledge-distillation stage with fewer tokens.

        Raises:
            ConfigError: too few tokens for one step.
        """
        tokens_per_step = (self.batch_size or stage.batch_size) * stage.seq_len
        windows = NUM_WINDOWS * self.window * self.snapshot_interval * tokens_per_step
        tokens = self.tokens
        if tokens is None and self.early_stop and stage.tokens // DEFAULT_FRACTION < windows <= stage.tokens:
            tokens = windows
        return self._shorten(stage, tokens, "tokens")

    def planned_tokens(self, context: "SelectionContext") -> int:
        stage = self.shorten(context.kd_stage)
        return stage.steps * stage.tokens_per_step

    def rank(self, context: "SelectionContext", k: int, direction: Direction) -> SelectionResult:
        stage = self.shorten(context.kd_stage)
        training = self.training(context).distillation(stage, direction, saves=self.save_state)
        history = training.run(k, direction, self.applied_rule)
        last = history[-1]
        return SelectionResult(
            layers=last.layers,
            scores=last.scores,
            measure=self.measures[direction],
            history=tuple(history),
            stopped_early=last.step < stage.steps,
            notes=self._early_stop_notes(stage),
            cost=self._cost(context, [(context.layers, last.step * stage.tokens_per_step)], training.seconds),
            details={"steps": stage.steps, **self._stability(history, k, self.rule)},
        )

    def _early_stop_notes(self, stage: Stage) -> tuple[str, ...]:
        """A note if the early stop was requested but cannot shorten the pass."""
        snapshots = -(-stage.steps // self.snapshot_interval)
        if not self.early_stop or snapshots > self.window:
            return ()
        return (
            f"the pass has {snapshots} snapshots and cannot stop early, which needs more than the "
            f"{self.window} of one window: raise tokens, or lower snapshot_interval or window",
        )

    def score_round(
        self, context: "SelectionContext", direction: Direction
    ) -> Callable[[Sequence[int]], Round]:
        """Each round distils and scores one student per undecided layer."""
        stage, trainings = self.shorten(context.kd_stage), self.training(context)

        def score(decided: Sequence[int]) -> Round:
            undecided = [layer for layer in range(context.layers) if layer not in decided]
            training = trainings.distillation(stage, direction, decided, saves=self.save_state)
            # Addition decides the best undecided layer; removal the worst, so all others stay in the top set.
            top = 1 if direction == "add" else len(undecided) - 1
            last = training.run(top, direction, self.applied_rule)[-1]
            training.drop_state()
            return Round(
                scores={layer: last.scores[layer] for layer in undecided},
                tokens=last.step * stage.tokens_per_step,
                seconds=training.seconds,
                details={"steps": last.step, "of": stage.steps},
            )

        return score


@SELECTORS.register("ga_s1")
class AlignmentAddition(AlignmentSelector):
    """Restore one layer, align briefly, compare hidden states."""

    direction: ClassVar[Direction | None] = "add"


@SELECTORS.register("ga_s2")
class DistillationAddition(DistillationSelector):
    """Restore one layer, distil briefly, compare held-out KL (Algorithm 1)."""

    direction: ClassVar[Direction | None] = "add"


@SELECTORS.register("gr_s1")
class AlignmentRemoval(AlignmentSelector):
    """Make one layer linear, align briefly, compare hidden states."""

    direction: ClassVar[Direction | None] = "remove"


@SELECTORS.register("gr_s2")
class DistillationRemoval(DistillationSelector):
    """Make one layer linear, distil briefly, compare held-out KL."""

    direction: ClassVar[Direction | None] = "remove"


@SELECTORS.register("avg_s1")
class AlignmentAverage(AlignmentSelector):
    """Mean of the ranks by gr_s1 and ga_s1."""

    direction: ClassVar[Direction | None] = None


@SELECTORS.register("avg_s2")
class DistillationAverage(DistillationSelector):
    """Mean of the ranks by gr_s2 and ga_s2."""

    direction: ClassVar[Direction | None] = None
