"""A one-swap pass: candidates trained step by step, rated at snapshots, stopped once their top-K settles.

Scores are written down at every snapshot, for all layers, so that a later call with another budget goes
on where this one stopped, and needs no training where the earlier one went further.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from itertools import islice
from math import nan
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from evalsuite.distill.batches import StageData, read_ahead
from evalsuite.distill.recipe import Stage
from evalsuite.distill.selection.ground import Ground
from evalsuite.distill.selection.journal import Journal
from evalsuite.distill.selection.outcome import Snapshot
from evalsuite.distill.selection.sets import top_layers
from evalsuite.distill.selection.swaps import Candidates, restore, state_of
from evalsuite.foundation import CheckpointError, progress, read_json, write_json


class OneSwapPass:
    """One stage of training for all candidates.

    Args:
        make: builds the candidates of the layers it is given; called only if something is left to train.
        about: what decides the scores, beside the recipe.
        name: of the pass's folder.
        rated: whether candidates are rated at snapshots; without, the pass only trains.
        layers: those that are rated; all by default.
    """

    def __init__(
        self,
        ground: Ground,
        stage: Stage,
        make: Callable[[Sequence[int]], Candidates],
        *,
        name: str,
        about: dict[str, Any],
        rated: bool = True,
        layers: Sequence[int] | None = None,
    ) -> None:
        self.ground, self.stage, self._make, self._rated = ground, stage, make, rated
        parallel = ground.parallel
        self._layers = list(range(ground.layers)) if layers is None else list(layers)
        self._mine = self._layers[parallel.rank :: parallel.world]
        self.seconds = 0.0
        """Of training and rating, up to where the last `run` ended."""
        about = {
            "stage": stage.model_dump(mode="json"),
            "every": ground.options.every,
            "held_out": ground.options.held_out,
            "trunk": ground.options.trunk,
            "trunk_stages": ground.options.trunk_stages,
            **about,
        }
        self.journal: Journal = ground.journal(name, about)
        self._folder = self.journal.path.parent
        self.candidates: Candidates | None = None

    def run(self, k: int, score: str = "", *, stop: bool = False) -> list[Snapshot]:
        """Train until the stage's budget is spent or, with `stop`, until the top-K set by `score` settles.

        Returns:
            The snapshots up to that point.
        """
        ended = self._ended(k, score, stop)
        if ended is None:
            self._train(k, score, stop)
            ended = self._ended(k, score, stop)
            assert ended is not None
        self.seconds = float(self.journal.rows[ended - 1]["seconds"])
        return self.snapshots(k, score)[:ended] if self._rated else []

    def snapshots(self, k: int, score: str) -> list[Snapshot]:
        """All that were written down, as sets of K layers."""
        found = []
        for row in self.journal.rows:
            scores = tuple(nan if value is None else value for value in row["scores"][score])
            found.append(
                Snapshot(
                    step=row["step"],
                    tokens=row["tokens"] * self._students,
                    layers=top_layers(scores, k),
                    scores=scores,
                )
            )
        return found

    @property
    def _students(self) -> int:
        """Students that read every batch: one per layer, or one for all in alignment."""
        return 1 if self.stage.aligns else len(self._layers)

    def _ended(self, k: int, score: str, stop: bool) -> int | None:
        """Number of snapshots after which the pass is over; None if it is not."""
        rows = self.journal.rows
        if stop and self._rated:
            sets = [snapshot.layers for snapshot in self.snapshots(k, score)]
            first = self.ground.options.rule.first(sets, k)
            if first is not None:
                return first + 1
        return len(rows) if rows and rows[-1]["step"] == self.stage.steps else None

    def _train(self, k: int, score: str, stop: bool) -> None:
        ground, stage, every = self.ground, self.stage, self.ground.options.every
        candidates = self.trained_so_far()
        at = self._at
        began, last_save = time.monotonic() - at["seconds"], time.monotonic()
        data = StageData(ground.readable, stage, ground.tokenizer, state=at["data"])
        left = stage.steps - at["step"]
        bar = progress(
            total=stage.steps, what=f"{self._folder.name} (one-swap)", unit="step", quiet=ground.quiet
        )
        bar.update(at["step"])
        with bar:
            for step in read_ahead(islice(data, left)):
                candidates.step(step, at["step"])
                at["step"] += 1
                at["data"] = step.state
                bar.update(1)
                if at["step"] % every and at["step"] != stage.steps:
                    continue
                scores = self._gathered(candidates.scores()) if self._rated else {}
                at["seconds"] = time.monotonic() - began
                self.journal.append(
                    {
                        "step": at["step"],
                        "tokens": at["step"] * stage.batch * stage.length,
                        "seconds": at["seconds"],
                        "scores": scores,
                    }
                )
                over = self._ended(k, score, stop) is not None
                due = time.monotonic() - last_save >= ground.recipe.saving.state_seconds
                # What alignment makes is small, and later passes start from it.
                keep = ground.options.keep_state or stage.aligns
                if keep and (over or ground.parallel.any(due)):
                    self._save(candidates)
                    last_save = time.monotonic()
                if over:
                    return

    def trained_so_far(self) -> Candidates:
        """The candidates as the last saved state left them, or as they start."""
        if self.candidates is None:
            self.candidates = self._make(self._mine)
            self._at: dict[str, Any] = {"step": 0, "data": None, "seconds": 0.0}
            latest = self._folder / "state" / "latest.json"
            if latest.exists():
                state = read_json(latest)
                for trainee in self.candidates.trainees:
                    restore(trainee, self._load(state["folder"], trainee.label))
                self._at = state["at"]
            rows = [row for row in self.journal.rows if row["step"] <= self._at["step"]]
            self.journal.cut(len(rows))
        return self.candidates

    def _load(self, folder: str, label: str) -> dict[str, Tensor]:
        path = self._folder / "state" / folder / f"{label}.safetensors"
        try:
            return load_file(path)
        except Exception as error:  # safetensors raises an exception class of its own for a torn file
            raise CheckpointError(
                f"{path}: the state of this pass is damaged ({error}); delete {self._folder} to start again"
            ) from error

    def _save(self, candidates: Candidates) -> None:
        """Write a whole state beside the last one, and then make it the one that counts."""
        state = self._folder / "state"
        target = state / f"{self._at['step']:06d}"
        if self.ground.parallel.main:
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
        self.ground.parallel.wait()
        labels = {trainee.label: trainee for trainee in candidates.trainees}
        if not self.stage.aligns or self.ground.parallel.main:
            for label, trainee in labels.items():
                tensors = {name: value.cpu().contiguous() for name, value in state_of(trainee).items()}
                save_file(tensors, target / f"{label}.safetensors")
        self.ground.parallel.wait()
        if self.ground.parallel.main:
            write_json(state / "latest.json", {"folder": target.name, "at": self._at})
            for old in state.iterdir():
                if old.is_dir() and old != target:
                    shutil.rmtree(old, ignore_errors=True)
        self.ground.parallel.wait()

    def drop_state(self) -> None:
        """Delete the saved candidates, once nothing will go on with them; what they scored stays."""
        if self.ground.parallel.main:
            shutil.rmtree(self._folder / "state", ignore_errors=True)
        self.ground.parallel.wait()

    def _gathered(self, scores: dict[str, dict[int, float]]) -> dict[str, list[float | None]]:
        """Every layer's score, from all processes; None for those that this pass does not rate."""
        rated = set(self._layers)
        gathered = {}
        for name, mine in scores.items():
            values = torch.zeros(self.ground.layers, dtype=torch.float64, device=self.ground.device)
            for layer, value in mine.items():
                values[layer] = value
            self.ground.parallel.sum(values)
            gathered[name] = [v if i in rated else None for i, v in enumerate(values.tolist())]
        return gathered
