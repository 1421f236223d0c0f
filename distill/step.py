"""One optimizer step of every student: gradients of all micro-batches, then clip and update.

On CUDA a micro-batch of a small model is some thousands of short kernels, and Python launches them more
slowly than the GPU runs them. Where shapes are fixed, the whole micro-batch (teacher, students, losses,
gradients) is therefore captured once as a CUDA graph and replayed.
"""

import logging
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from evalsuite.distill.alignment import align
from evalsuite.distill.batches import Batch, StepData
from evalsuite.distill.end_to_end import Objective, end_to_end
from evalsuite.distill.language_model import LanguageModel
from evalsuite.distill.optimizers import FlatGradients, Masters, build_optimizers, set_learning_rate
from evalsuite.distill.parallel import Parallel
from evalsuite.distill.recipe import Stage
from evalsuite.distill.stages import is_mixer, softmax_layers, trained_parameters

_log = logging.getLogger("evalsuite")

EAGER_FIRST = 2
"""Micro-batches that run as they are before one is captured: kernels are chosen and compiled in them."""


class Trainee:
    """A student in training: what of it trains in the current stage, and how.

    Args:
        dtype: in which forward and backward passes run; the masters are fp32.
    """

    def __init__(self, label: str, model: LanguageModel, dtype: torch.dtype = torch.float32) -> None:
        self.label, self.model = label, model
        self.masters = Masters(model, dtype)
        self.parameters: dict[str, nn.Parameter] = {}
        self.optimized: dict[str, nn.Parameter] = {}
        self.optimizers: list[torch.optim.Optimizer] = []
        self.gradients: FlatGradients | None = None
        self.objective = Objective(model)
        self._copies: list[nn.Parameter] = []

    @property
    def sharded(self) -> bool:
        """Whether this process holds only a part of the student."""
        return False

    def enter(self, stage: Stage) -> None:
        """Prepare for a stage: choose parameters, make optimizers and gradients."""
        self.leave()
        self.parameters = trained_parameters(self.model, stage.trains)
        softmax = softmax_layers(self.model)
        masters = self.optimized = {name: self.masters.weights[name] for name in self.parameters}
        self.optimizers = build_optimizers(masters, stage, lambda name: is_mixer(name, softmax))
        parts: dict[str, list[str]] = {}
        for name in masters:
            # model.layers.<number>: alignment trains, and clips, every layer on its own.
            parts.setdefault(".".join(name.split(".")[:3]) if stage.aligns else "", []).append(name)
        self.gradients = FlatGradients([[masters[name] for name in part] for part in parts.values()])
        self._copies = [self.parameters[name] for part in parts.values() for name in part]

    def clear(self) -> None:
        """Set all gradients to zero."""
        assert self.gradients is not None
        self.gradients.clear()

    def collect(self) -> None:
        """Take over the gradients of a micro-batch."""
        assert self.gradients is not None
        if self.masters.separate:
            self.gradients.collect(self._copies)

    def forget(self) -> None:
        """Drop the gradients of a micro-batch that did not run to its end."""
        if self.masters.separate:
            for copy in self._copies:
                copy.grad = None

    def reduce(self, parallel: Parallel) -> None:
        """Add up the gradients of all processes."""
        assert self.gradients is not None
        parallel.sum(self.gradients.buffer)

    def update(self, stage: Stage, step: int) -> tuple[Tensor, float]:
        """One optimizer step: the gradients' norm before clipping, and the schedule's factor."""
        assert self.gradients is not None
        norm = self.gradients.clip(stage.clip)
        factor = set_learning_rate(self.optimizers, stage, step)
        for optimizer in self.optimizers:
            optimizer.step()
        self.masters.publish(self.parameters)
        return norm, factor

    def weights(self) -> Mapping[str, Tensor]:
        """The fp32 weights by name."""
        return self.masters.weights

    def moments(self) -> dict[str, Tensor]:
        """What the optimizers keep, by `<parameter>/<name>`."""
        names = {id(parameter): name for name, parameter in self.optimized.items()}
        return {
            f"{names[id(owner)]}/{key}": torch.as_tensor(value)
            for optimizer in self.optimizers
            for owner, values in optimizer.state.items()
            for key, value in values.items()
        }

    def leave(self) -> None:
        """Free what a stage needed."""
        for parameter in (*self.model.parameters(), *self.masters.weights.values()):
            parameter.grad = None
        self.optimized, self.optimizers, self.gradients, self._copies = {}, [], None, []


class Stepper:
    """The optimizer steps of one stage.

    Args:
        teacher: None in stages without one.
        graphs: capture micro-batches of fixed shape on CUDA; False runs them all as they are.
    """

    def __init__(
        self,
        teacher: LanguageModel | None,
        trainees: Sequence[Trainee],
        stage: Stage,
        parallel: Parallel,
        *,
        graphs: bool = True,
    ) -> None:
        self._teacher, self._trainees, self._stage, self._parallel = teacher, trainees, stage, parallel
        self._losses = torch.zeros(len(trainees), 1 if stage.aligns else 3, device=parallel.device)
        # Sharded weights live at other places in every step.
        sharded = any(trainee.sharded for trainee in trainees)
        self._graphs = graphs and parallel.device.type == "cuda" and not sharded
        self._captured: dict[tuple[int, ...], tuple[torch.cuda.CUDAGraph, Batch]] = {}
        self._seen: dict[tuple[int, ...], int] = {}

    def step(self, data: StepData, number: int) -> tuple[Tensor, Tensor, float]:
        """Train on one batch.

        Returns:
            Losses [students, columns], gradient norms [students], and the schedule's factor.
        """
        self._losses.zero_()
        for trainee in self._trainees:
            trainee.clear()
        # With a mask a small batch may hold no token that counts: nothing pulls, and nothing is divided by.
        counted = max(1, data.counted)
        for batch in data.micro_batches:
            self._micro_batch(batch.to(self._parallel.device), counted)
        losses = self._losses.clone()
        self._parallel.sum(losses)
        norms = []
        factor = 1.0
        for trainee in self._trainees:
            trainee.reduce(self._parallel)
            norm, factor = trainee.update(self._stage, number)
            norms.append(norm)
        return losses, torch.stack(norms), factor

    def _micro_batch(self, batch: Batch, counted: int) -> None:
        key = (*batch.inputs.shape, counted)
        if not self._graphs or not batch.plain:
            self._gradients(batch, counted)
            return
        if key not in self._captured and self._seen.get(key, 0) >= EAGER_FIRST:
            self._capture(key, batch, counted)
        if key in self._captured:
            graph, place = self._captured[key]
            place.inputs.copy_(batch.inputs)
            place.labels.copy_(batch.labels)
            graph.replay()
            return
        self._seen[key] = self._seen.get(key, 0) + 1
        self._gradients(batch, counted)

    def _capture(self, key: tuple[int, ...], batch: Batch, counted: int) -> None:
        """Capture the work of a micro-batch; it does not run until it is replayed."""
        place = Batch(batch.inputs.clone(), batch.labels.clone())
        graph = torch.cuda.CUDAGraph()
        try:
            # The reading thread pins memory meanwhile, which another mode would take for a mistake.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._gradients(place, counted)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            _log.warning("training without CUDA graphs, which is slower: %s", str(error).split("\n")[0])
            self._graphs = False
            for trainee in self._trainees:
                trainee.forget()
            return
        self._captured[key] = (graph, place)

    def _gradients(self, batch: Batch, counted: int) -> None:
        """Add losses and gradients of one micro-batch to what this step has so far."""
        if self._stage.aligns:
            assert self._teacher is not None
            students = [trainee.model for trainee in self._trainees]
            here = batch.inputs.numel() if batch.kept is None else batch.kept.numel()
            self._losses += align(self._teacher, students, batch, self._stage, here / counted)[:, None]
        else:
            objectives = [trainee.objective for trainee in self._trainees]
            self._losses += end_to_end(self._teacher, objectives, batch, self._stage, counted)
        for trainee in self._trainees:
            trainee.collect()
