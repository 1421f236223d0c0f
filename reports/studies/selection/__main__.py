"""Comparison of selectors: the layers of every selector, distilled by one recipe and evaluated on one suite.

    python -m evalsuite.reports.studies.selection pocket --mixer gated_deltanet --budget 1 2 --out runs/study

selects with each selector at each budget from one shared all-linear student, distils every distinct set of
layers by the same recipe and seed, evaluates all students, and writes `selectors.csv` and `selectors.md` with
confidence intervals and paired differences from `uniform`. The same command resumes an interrupted study.
Under `torchrun`, several GPUs share each step. Steps can run on different machines: `--steps build` where the
data are, `--steps select distill infer` on a GPU host, `--steps score` anywhere. Several processes with one
--out folder share the students if each has its own `--worker-index`.

Exit codes: 0 done, 64 or more an error.
"""

import argparse
import gc
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from os.path import relpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.cli.exit_codes import guarded
from evalsuite.cli.interrupts import interruptible
from evalsuite.foundation import (
    ConfigError,
    RunFolderError,
    locked,
    nearest,
    read_json,
    write_csv,
    write_json,
    write_text,
)
from evalsuite.foundation.parser import Parser
from evalsuite.reports.run import read_manifest
from evalsuite.reports.studies.selection.tables import (
    BENCHMARK_COLUMNS,
    COLUMNS,
    REFERENCE,
    Layers,
    Line,
    as_markdown,
    by_benchmark,
    compared,
    csv_rows,
    fully_evaluated,
    groups_of,
    label_of,
    name_selectors,
    plain_scores,
    read_answers,
    with_quality,
)

if TYPE_CHECKING:
    from evalsuite.distill.recipe import Recipe
    from evalsuite.distill.selection import Selector
    from evalsuite.distill.selection.context import SelectionContext

NAME = "evalsuite.reports.studies.selection"
STEPS = ("select", "distill", "build", "infer", "score")


def study(
    recipe: str,
    out: Path,
    *,
    mixer: str,
    budgets: Sequence[int],
    selectors: Sequence[str],
    suite: str,
    overrides: Sequence[str] = (),
    options: Sequence[str] = (),
    limit: int | None = None,
    steps: Sequence[str] = STEPS,
    complete: bool = False,
    ablate_layers: Sequence[int] = (),
    worker_index: int = 0,
    device: str | None = None,
    quiet: bool = False,
) -> list[Line]:
    """Select, distil, evaluate and compare; every step is resumable.

    Args:
        recipe: name or path; documents held out by the search are excluded from all training.
        out: output folder.
        mixer: mixer of the linear layers, in the search and in the students.
        budgets: numbers of softmax layers.
        selectors: names, including the reference.
        suite: suite that the students are evaluated on.
        overrides, options: overrides of the recipe for all students, and options of the selectors.
        limit: documents per benchmark.
        steps: some of `STEPS`; the others are assumed to be done.
        complete: also run one-swap training to its end, to measure the effect of early stopping.
        ablate_layers: layers whose one-swap student is also trained alone, to measure its time.
        worker_index: index of this process among those that share the folder; each takes students that
            no other process has claimed.
        device, quiet: as for `distill`.

    Returns:
        Result rows; empty if step `score` is not among the steps.

    Raises:
        ConfigError: the reference selector is missing, or an invalid recipe, option or suite.
    """
    if REFERENCE not in selectors:
        raise ConfigError(f"--selectors must include '{REFERENCE}', which the others are compared with")
    for step in steps:
        if step not in STEPS:
            raise ConfigError(f"step '{step}'{nearest(step, STEPS)}")
    made = Study(recipe, out, mixer, overrides, options, device, quiet, worker_index)
    if "select" in steps:
        with made.timed("selecting"):
            made.select(selectors, budgets, complete=complete, ablate_layers=ablate_layers)
    if "build" in steps and made.process_group.is_main:
        made.build(suite, limit)
    made.process_group.barrier()
    made.distill_and_infer(distilling="distill" in steps, inferring="infer" in steps)
    if "score" not in steps or not made.process_group.is_main:
        return []
    return made.score(suite, budgets)


class Study:
    """The folders and steps of a study.

    layers/<selector>-<budget>.json, work/, distilled/, students/<label>, run/, run-<number of process>/.
    """

    def __init__(
        self,
        recipe: str,
        out: Path,
        mixer: str,
        overrides: Sequence[str],
        options: Sequence[str],
        device: str | None,
        quiet: bool,
        worker_index: int = 0,
    ) -> None:
        from evalsuite.distill import load_recipe
        from evalsuite.distill.selection import SELECTORS, load_selector
        from evalsuite.distill.training.distributed import ProcessGroup
        from evalsuite.distill.training.held_out import without_held_out

        self.recipe: Recipe = without_held_out(load_recipe(recipe, [*overrides, f"student.mixers=[{mixer}]"]))
        self.options = options
        known = {key for name in SELECTORS for key in SELECTORS[name].model_fields}
        load_selector(REFERENCE, [each for each in options if each.partition("=")[0] not in known])
        self.out, self.run, self.device, self.quiet = out, out / "run", device, quiet
        self.worker_index, self.process_group = worker_index, ProcessGroup(device)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add the duration of a step to `seconds.json`."""
        self.process_group.barrier()
        began = time.monotonic()
        yield
        self.process_group.barrier()
        path = self.out / (f"seconds-{self.worker_index}.json" if self.worker_index else "seconds.json")
        if self.process_group.is_main:
            known = dict(read_json(path)) if path.exists() else {}
            spent = known.get(what, 0.0) + time.monotonic() - began
            write_json(path, {**known, what: spent, "device": self.process_group.device_name})

    def selector(self, name: str, *own: str) -> "Selector":
        """The selector `name` with those of the study's options that it has, and its own."""
        from evalsuite.distill.selection import SELECTORS, load_selector

        keys = SELECTORS.get_or_raise(name).model_fields
        return load_selector(name, [*(each for each in self.options if each.partition("=")[0] in keys), *own])

    def context(self) -> "SelectionContext":
        """The teacher and its data, for all selectors."""
        from evalsuite.distill.selection.context import SelectionContext

        return SelectionContext(
            self.recipe, self.selector(REFERENCE), self.out / "work", device=self.device, quiet=self.quiet
        )

    def select(
        self,
        selectors: Sequence[str],
        budgets: Sequence[int],
        *,
        complete: bool,
        ablate_layers: Sequence[int],
    ) -> None:
        """Select layers with every selector and budget in one context."""
        from evalsuite.distill.selection.run import select_on
        from evalsuite.distill.selection.selectors.one_swap import DistillationSelector
        from evalsuite.reports.studies.selection.single_candidate import train_single_candidate

        context = self.context()
        for name in selectors:
            chosen = self.selector(name)
            if complete and isinstance(chosen, DistillationSelector):
                ended, path = self.selector(name, "early_stop=false"), self.out / "complete" / f"{name}.json"
                self._log(f"{name} to its end", partial(select_on, context, ended, path, budget=max(budgets)))
            for budget in budgets:
                path = self._file(name, budget)
                self._log(f"{name} {budget}", partial(select_on, context, chosen, path, budget=budget))
        single: Any = self.selector("ga_s2")
        alone = [
            self._log(f"layer {layer} alone", partial(train_single_candidate, context, single, layer))
            for layer in ablate_layers
        ]
        if alone and self.process_group.is_main:
            write_json(self.out / "single_candidates.json", alone)

    def _log(self, what: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        began = time.monotonic()
        value = work()
        _free()
        if self.process_group.is_main:
            spent = time.monotonic() - began
            shown = value.get("layers", value)
            print(f"{what}: {shown}, {spent:.1f} s", file=sys.stderr, flush=True)
        return value

    def _file(self, selector: str, budget: int) -> Path:
        return self.out / "layers" / f"{selector}-{budget}.json"

    def chosen(self) -> dict[tuple[str, int], dict[str, Any]]:
        """(selector, budget) → selection, for all existing files."""
        found = {}
        for path in (self.out / "layers").glob("*.json"):
            name, _, budget = path.stem.rpartition("-")
            found[name, int(budget)] = dict(read_json(path))
        return dict(sorted(found.items()))

    @property
    def sets(self) -> list[Layers]:
        """All distinct sets of softmax layers, the empty set last."""
        found = {tuple(value["layers"]) for value in self.chosen().values()}
        return [*sorted(found, key=lambda each: (len(each), each)), ()]

    def _unclaimed(self, *, teacher: bool) -> Iterator[Layers | None]:
        """Yield the teacher (None) and the sets that no other process has claimed, including sets selected
        meanwhile. Claims are held until the iteration ends."""
        seen: set[Layers | None] = set()
        with ExitStack() as held:
            while True:
                everyone = [*((None,) if teacher else ()), *self.sets]
                new = [each for each in everyone if each not in seen]
                if not new:
                    return
                seen.add(new[0])
                name = "teacher" if new[0] is None else label_of(new[0])
                try:
                    # Processes of one torchrun work on the same student.
                    if self.process_group.is_main:
                        lock = self.out / "claims" / f"{name}.lock"
                        held.enter_context(locked(lock, wait=False))
                except RunFolderError:
                    if self.process_group.world_size > 1:
                        raise
                    continue
                yield new[0]

    def distill_and_infer(self, *, distilling: bool, inferring: bool) -> None:
        """Distil students and run their inference in batches of one per process, the teacher first."""
        pending: list[str] = []
        for layers in self._unclaimed(teacher=inferring) if distilling or inferring else ():
            if layers is None:
                pending.append(str(self.recipe.teacher))
            else:
                if distilling:
                    with self.timed("distilling"):
                        self.distill(layers)
                if inferring and self.student(layers).exists():
                    pending.append(str(self.student(layers)))
            if len(pending) >= self.process_group.world_size:
                self.infer(pending)
                pending = []
        if pending:
            self.infer(pending)

    def distill(self, layers: Layers) -> None:
        """Distil the student with these softmax layers; without any, it is the all-linear student."""
        from evalsuite.distill import distill

        if layers:
            student = self.recipe.student.model_copy(update={"softmax_layers": list(layers)})
            recipe = self.recipe.model_copy(update={"student": student})
            out = self.out / "distilled" / label_of(layers)
            (folder,) = distill(recipe, out, device=self.device, quiet=self.quiet)
        else:
            folder = self.context().all_linear_path
        self._linked(layers, folder)
        _free()

    def student(self, layers: Layers) -> Path:
        """Folder of the student with these softmax layers."""
        return self.out / "students" / label_of(layers)

    def _linked(self, layers: Layers, folder: Path) -> None:
        """Link a student folder under the label that the evaluation uses."""
        link = self.student(layers)
        if self.process_group.is_main and not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(relpath(folder, link.parent))
        self.process_group.barrier()

    def build(self, suite: str, limit: int | None) -> None:
        """Build the requests for the teacher; students share its tokenizer and join the run later."""
        self._evaluate(self.run, suite=suite, teacher=self.recipe.teacher, limit=limit, phases=["build"])

    def _evaluate(self, run: Path, **settings: Any) -> None:
        from evalsuite.config import RunConfig
        from evalsuite.evaluation import evaluate

        evaluate(RunConfig(out=run, quiet=self.quiet, **settings))

    def infer(self, paths: Sequence[str]) -> None:
        """Run inference on checkpoints, split over the processes, each with its own run folder."""
        from evalsuite.reports.run import manifest_path

        rank, world = self.process_group.rank, self.process_group.world_size
        number = self.worker_index * world + rank
        run = self.run if number == 0 else self.out / f"run-{number}"
        if number > 0 and not manifest_path(run).is_file():
            run.mkdir(parents=True, exist_ok=True)
            shutil.copy(manifest_path(self.run), manifest_path(run))
            shutil.copytree(self.run / "requests", run / "requests", dirs_exist_ok=True)
        device = str(self.process_group.device) if self.device is None or world > 1 else self.device
        mine = [path for path in paths[rank::world] if not self._complete_elsewhere(path, run)]
        with self.timed("inference"):
            if mine:
                self._evaluate(run, checkpoints=mine, device=device, phases=["infer"])
        _free()

    def _complete_elsewhere(self, path: str, here: Path) -> bool:
        """Whether another run folder has all responses of a checkpoint."""
        from evalsuite.evaluation.shards.export import is_complete
        from evalsuite.models import describe_checkpoint

        others = [run for run in sorted(self.out.glob("run*")) if run.is_dir() and run != here]
        weights = describe_checkpoint(path).weights_id if others else ""
        return any(is_complete(run, weights) for run in others)

    def score(self, suite: str, budgets: Sequence[int]) -> list[Line]:
        """Score all responses and write the tables."""
        shards = sorted(self.out.glob("run-*"))
        self._evaluate(self.run, suite=suite, merge_shards=shards, phases=["score"])
        name_selectors(self.run, self.chosen())
        groups = groups_of(suite)
        answers = read_answers(self.run, groups)
        chosen = {key: value for key, value in self.chosen().items() if key[1] in budgets}
        evaluated, left = fully_evaluated(chosen, answers)
        if left:
            print(f"not fully evaluated yet: {', '.join(left)}", file=sys.stderr, flush=True)
        lines = compared(evaluated, answers, groups)
        teacher = next(each.label for each in read_manifest(self.run).checkpoints if each.role == "teacher")
        references = {
            name: plain_scores(answers.get(label, {}), groups)
            for name, label in (("teacher", teacher), ("no softmax layer", label_of(())))
        }
        selections = [
            with_quality(value, lines, references["no softmax layer"])
            for (_, budget), value in evaluated.items()
            if budget == max(budgets)
        ]
        write_json(self.run / "selection.json", selections)
        write_csv(self.out / "selectors.csv", COLUMNS, csv_rows(lines, references))
        write_text(self.out / "selectors.md", as_markdown(lines, groups, references))
        write_csv(self.out / "scores.csv", BENCHMARK_COLUMNS, by_benchmark(answers))
        return lines


def _free() -> None:
    """Release GPU memory of a search or a student."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the study from the command line; errors return 64 or more."""
    from evalsuite.distill.selection import SELECTORS

    searching = [name for name in SELECTORS if name != "fixed"]
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog=f"python -m {NAME}", description=__doc__, formatter_class=raw)
    parser.add_argument("recipe")
    parser.add_argument("--mixer", required=True)
    parser.add_argument("--budget", type=int, nargs="+", required=True)
    parser.add_argument("--selectors", nargs="+", default=searching)
    parser.add_argument("--suite", default="pocket-recall")
    parser.add_argument("--set", nargs="+", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument("--option", nargs="+", default=[], dest="options", metavar="KEY=VALUE")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--steps", nargs="+", default=list(STEPS), choices=STEPS)
    full = "also run one-swap training to its end, for comparison"
    parser.add_argument("--no-early-stop", dest="complete", action="store_true", help=full)
    alone = "also train the one-swap student of LAYER alone, and record its time"
    layer: dict[str, Any] = {"dest": "ablate_layers", "type": int, "nargs": "+", "metavar": "LAYER"}
    parser.add_argument("--ablate-layer", default=[], help=alone, **layer)
    help_text = "index of this process, if several share the output folder"
    parser.add_argument("--worker-index", type=int, default=0, metavar="N", help=help_text)
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quiet", action="store_true")
    arguments = vars(parser.parse_args(argv))

    def call() -> int:
        study(arguments.pop("recipe"), arguments.pop("out"), budgets=arguments.pop("budget"), **arguments)
        return 0

    return interruptible(NAME, lambda: guarded(NAME, call, resumable=True))


if __name__ == "__main__":
    sys.exit(main())
