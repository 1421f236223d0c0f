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
from dataclasses import dataclass, field, replace
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
    from evalsuite.distill.selection.one_swap_training import OneSwapTraining
    from evalsuite.models import StudentForCausalLM

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
    """One training of candidates, and what it says of them."""

    scores: Mapping[int, float]
    """Importance of the layers that are still undecided."""
    tokens: int = 0
    """Training tokens of one candidate."""
    seconds: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)


RoundScorer = Callable[[Sequence[int]], Round]
"""Scores the undecided layers, given the decided ones."""
Ranking = tuple[SelectionResult, list[Round]]
"""A result without its cost, and the trainings behind it."""


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
    def rank(self, context: "SelectionContext", k: int, direction: Direction) -> Ranking:
        """Score every layer once and select the top K."""

    @abstractmethod
    def score_round(self, context: "SelectionContext", direction: Direction) -> RoundScorer:
        """What scores the layers of a round."""

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

    def alignment(self, context: "SelectionContext", *, scored: bool) -> "OneSwapTraining":
        """The alignment that all swaps share, scored at snapshots for the stage-1 selectors."""
        from evalsuite.distill.selection.one_swap_training import AlignedCandidates, OneSwapTraining

        stage = self.align_stage(context)
        assert stage is not None
        return OneSwapTraining(
            context,
            stage,
            lambda layers: AlignedCandidates(context, stage, layers),
            name="align",
            about={"scored": scored},
            snapshot_interval=self.snapshot_interval,
            scored=scored,
        )

    def _either_alignment(self, context: "SelectionContext") -> "OneSwapTraining":
        """The complete alignment, scored or not; the unscored one if neither is complete."""
        runs = [self.alignment(context, scored=scored) for scored in (True, False)]
        return next((run for run in runs if run.is_complete), runs[1])

    def aligned_student(self, context: "SelectionContext") -> "StudentForCausalLM":
        """The all-linear student after the alignment."""
        if self.align_stage(context) is None:
            return context.all_linear
        training = self._either_alignment(context)
        # Loaded first: the log is complete before the state is, and then the rest is trained again.
        candidates: Any = training.load_candidates()
        training.run(1, "add")
        return context.prepare(candidates.model)

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
        directions: tuple[Direction, ...] = ("add", "remove") if self.direction is None else (self.direction,)
        parts = {each: search(context, k, each) for each in directions}
        cost = self._cost(context, [each for _, rounds in parts.values() for each in rounds])
        results = {direction: result for direction, (result, _) in parts.items()}
        if self.direction is not None:
            return replace(results[self.direction], cost=cost)
        one, other = (ranks(result.scores) for result in results.values())
        return SelectionResult.of_scores(
            [-(a + b) / 2 for a, b in zip(one, other, strict=True)],
            k,
            measure="minus the mean rank of this layer in removal and addition",
            cost=cost,
            details={
                direction: {"layers": list(result.layers), "scores": list(result.scores)}
                for direction, result in results.items()
            },
        )

    def _cost(self, context: "SelectionContext", rounds: Sequence[Round]) -> Cost:
        aligned, planned = self.align_tokens_spent(context), self.planned_tokens(context)
        candidates = sum(len(each.scores) for each in rounds)
        rows = self._either_alignment(context).progress_log.rows if aligned else []
        return Cost(
            student_tokens=aligned + sum(len(each.scores) * each.tokens for each in rounds),
            teacher_tokens=aligned + sum(each.tokens for each in rounds),
            tokens_without_early_stop=aligned + candidates * planned,
            tokens_without_sharing=candidates * (aligned + planned),
            all_linear_tokens=context.all_linear_tokens,
            seconds=sum(row["seconds"] for row in rows[-1:]) + sum(each.seconds for each in rounds),
        )

    def _ranking(
        self,
        history: Sequence[Snapshot],
        k: int,
        direction: Direction,
        found: Round,
        rule: StopRule,
        *,
        stopped_early: bool = False,
        notes: tuple[str, ...] = (),
    ) -> Ranking:
        """The last top-K set, with its window, and the share of snapshots within one swap of it."""
        sets, last = [snapshot.layers for snapshot in history], history[-1]
        window = rule.last(sets)
        near = [jaccard(each, sets[-1]) >= one_swap_jaccard(k) - 1e-12 for each in sets]
        result = SelectionResult(
            layers=last.layers,
            scores=last.scores,
            measure=self.measures[direction],
            history=tuple(history),
            stopped_early=stopped_early,
            notes=notes,
            details={
                **found.details,
                "window": {
                    "snapshots": len(window.sets),
                    "jaccard": window.jaccard,
                    "backbone": window.backbone,
                    "union": window.union,
                },
                "within_one_swap_of_last": sum(near) / len(near),
                "step": last.step,
                "scores": [list(snapshot.scores) for snapshot in history],
            },
        )
        return result, [found]

    def _decide_in_rounds(self, context: "SelectionContext", k: int, direction: Direction) -> Ranking:
        """Decide one layer per round; the score of a layer is the round that decided it."""
        num_rounds = k if direction == "add" else context.layers - k
        score, every = self.score_round(context, direction), range(context.layers)
        decided: list[int] = []
        rounds: list[Round] = []
        history: list[Snapshot] = []
        spent = self.align_tokens_spent(context)
        for number in range(num_rounds):
            found = score(decided)
            # The layer that helps most, or hurts least; the first one on ties.
            sign = 1.0 if direction == "add" else -1.0
            decided += top_layers([sign * found.scores.get(layer, nan) for layer in every], 1)
            rounds.append(found)
            spent += len(found.scores) * found.tokens
            rest = [layer for layer in every if layer not in decided]
            layers = tuple(sorted(decided) if direction == "add" else rest)
            history.append(Snapshot(step=number + 1, tokens=spent, layers=layers))
        at = [decided.index(layer) if layer in decided else num_rounds for layer in every]
        result = SelectionResult(
            layers=history[-1].layers if history else tuple(every),
            scores=tuple(float(num_rounds - i if direction == "add" else i) for i in at),
            measure=ROUNDS_MEASURE[direction],
            history=tuple(history),
            details={
                "rounds": [
                    {"layer": layer, "scores": [each.scores.get(i) for i in every], **each.details}
                    for layer, each in zip(decided, rounds, strict=True)
                ]
            },
        )
        return result, rounds


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

    def rank(self, context: "SelectionContext", k: int, direction: Direction) -> Ranking:
        history = self.alignment(context, scored=True).run(k, direction)
        found = Round(scores=dict(enumerate(history[-1].scores)))
        return self._ranking(history, k, direction, found, StopRule())

    def score_round(self, context: "SelectionContext", direction: Direction) -> RoundScorer:
        """One alignment serves all rounds, which only measure (Eq. 4)."""
        from evalsuite.distill.selection.hybrids import swap_layers
        from evalsuite.distill.selection.one_swap_training import SIGNS

        all_linear = self.aligned_student(context)
        about = {"stage": self.align_stage(context).model_dump(mode="json"), **context.settings}
        progress_log = context.progress_log(f"align-rounds-{direction}", about)
        known = {tuple(row["layers"]): row["score"] for row in progress_log.rows}

        def score(decided: Sequence[int]) -> Round:
            undecided = [layer for layer in range(context.layers) if layer not in decided]
            swaps = {layer: tuple(sorted([*decided, layer])) for layer in undecided}
            missing = {
                layers: swap_layers(direction, all_linear, context.teacher, layers)
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
    """Save the one-swap students while they train, 12 bytes per trained parameter each, so that training can
    be resumed, or extended after an early stop. A state waits for half a minute of training per GB, ten times
    what saving it takes, and needs room for two on the disk; where this matters, a warning says so. Without
    a state an interrupted training restarts."""

    @property
    def rule(self) -> StopRule:
        """Early-stop rule with these settings."""
        return StopRule(window=self.window, stop_on_last_slot_tie=self.stop_on_last_slot_tie)

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

    def distillation(
        self, context: "SelectionContext", stage: Stage, direction: Direction, before: Sequence[int] = ()
    ) -> "OneSwapTraining":
        """The training of one student per layer; layers `before` are swapped in all of them."""
        from evalsuite.distill.selection.one_swap_training import DistilledCandidates, OneSwapTraining

        def build(layers: Sequence[int]) -> DistilledCandidates:
            all_linear = self.aligned_student(context)
            return DistilledCandidates(context, stage, direction, all_linear, layers, before)

        align = self.align_stage(context)
        about: dict[str, Any] = {"align": None if align is None else align.model_dump(mode="json")}
        if before:
            about["before"] = sorted(before)
        return OneSwapTraining(
            context,
            stage,
            build,
            name=f"kd-{direction}",
            about=about,
            snapshot_interval=self.snapshot_interval,
            saves=self.save_state,
            layers=[layer for layer in range(context.layers) if layer not in before],
        )

    def planned_tokens(self, context: "SelectionContext") -> int:
        stage = self.shorten(context.kd_stage)
        return stage.steps * stage.tokens_per_step

    def rank(self, context: "SelectionContext", k: int, direction: Direction) -> Ranking:
        stage = self.shorten(context.kd_stage)
        training = self.distillation(context, stage, direction)
        history = training.run(k, direction, self.rule if self.early_stop else None)
        step, snapshots = history[-1].step, -(-stage.steps // self.snapshot_interval)
        notes: tuple[str, ...] = ()
        if self.early_stop and snapshots <= self.window:
            notes = (
                f"the pass has {snapshots} snapshots and cannot stop early, which needs more than the "
                f"{self.window} of one window: raise tokens, or lower snapshot_interval or window",
            )
        found = Round(
            scores=dict(enumerate(history[-1].scores)),
            tokens=step * stage.tokens_per_step,
            seconds=training.seconds,
            details={"steps": stage.steps},
        )
        early = step < stage.steps
        return self._ranking(history, k, direction, found, self.rule, stopped_early=early, notes=notes)

    def score_round(self, context: "SelectionContext", direction: Direction) -> RoundScorer:
        """Each round distils and scores one student per undecided layer."""
        stage = self.shorten(context.kd_stage)

        def score(decided: Sequence[int]) -> Round:
            undecided = [layer for layer in range(context.layers) if layer not in decided]
            training = self.distillation(context, stage, direction, decided)
            # Addition decides the best undecided layer; removal the worst, so all others stay in the top set.
            top = 1 if direction == "add" else len(undecided) - 1
            last = training.run(top, direction, self.rule if self.early_stop else None)[-1]
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
