"""Which selector chooses best: every selector's layers, distilled alike and asked to recall.

    python -m evalsuite.evaluator.selection_study pocket --mixer gated_deltanet --budget 1 2 --out runs/study

selects with each selector at each budget on one shared trunk, distils every distinct set of layers by the
same recipe and seed, asks all students the suite, and writes `selectors.csv` and `selectors.md` with
confidence intervals and the paired difference from `uniform`. Killed, the same command goes on. Under
`torchrun` several GPUs share each step. The steps may be done on different machines: `--steps render` where
the data are, `--steps select distill answer` on a GPU host, `--steps judge` at home again. Processes on one
GPU, or on machines with one disk, share the students if each has a number of its own: `--beside 1`.
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

from evalsuite.evaluator.selection_tables import (
    REFERENCE,
    Layers,
    Line,
    as_csv,
    as_markdown,
    asked_whole,
    by_benchmark,
    compared,
    groups_of,
    label_of,
    name_selectors,
    plain_scores,
    read_answers,
    with_quality,
)
from evalsuite.foundation import (
    ConfigError,
    EvalsuiteError,
    RunFolderError,
    locked,
    nearest,
    read_json,
    write_json,
    write_text,
)
from evalsuite.reports.run_folder import read_plan

if TYPE_CHECKING:
    from evalsuite.distill.recipe import Recipe
    from evalsuite.distill.selection import Options

STEPS = ("select", "distill", "render", "answer", "judge")


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
    whole: bool = False,
    separate: Sequence[int] = (),
    beside: int = 0,
    device: str | None = None,
    quiet: bool = False,
) -> list[Line]:
    """Select, distil, ask and compare; every step resumes.

    Args:
        recipe: its name or path; documents that a search holds out are held out of all training.
        out: a folder.
        mixer: of the layers that are not softmax, while choosing and in the students.
        budgets: numbers of softmax layers.
        selectors: their names, among them the reference.
        suite: what the students are asked.
        overrides: of the recipe, for the trunk and for every student alike.
        options: of the selectors.
        limit: documents per benchmark.
        steps: some of `STEPS`; the others are taken as done.
        whole: let one-swap passes run to their end as well, to see what an early stop gives away.
        separate: layers whose one-swap student is also trained by itself, for the time it takes.
        beside: number of this process among those that make and ask the students of this folder at once;
            each takes what no other has begun.
        device: as for `distill`.
        quiet: no progress bars.

    Returns:
        What was found; nothing if the answers are not judged yet.

    Raises:
        ConfigError: the reference is missing among the selectors, or a recipe, option or suite is wrong.
    """
    if REFERENCE not in selectors:
        raise ConfigError(f"--selectors must hold '{REFERENCE}', which the others are compared to")
    for step in steps:
        if step not in STEPS:
            raise ConfigError(f"step '{step}'{nearest(step, STEPS)}")
    made = Study(recipe, out, mixer, overrides, options, device, quiet, beside)
    if "select" in steps:
        with made.timed("selecting"):
            made.select(selectors, budgets, whole=whole, separate=separate)
    if "render" in steps and made.parallel.main:
        made.render(suite, limit)
    made.parallel.wait()
    made.distill_and_answer(distilling="distill" in steps, answering="answer" in steps)
    if "judge" not in steps or not made.parallel.main:
        return []
    return made.judge(suite, budgets)


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
        beside: int = 0,
    ) -> None:
        from evalsuite.distill import load_recipe
        from evalsuite.distill.parallel import Parallel
        from evalsuite.distill.selection import load_options
        from evalsuite.distill.selection.held_out import training_part

        self.recipe: Recipe = training_part(load_recipe(recipe, [*overrides, f"student.mixers=[{mixer}]"]))
        self.options: Options = load_options(options)
        self.out, self.run, self.device, self.quiet = out, out / "run", device, quiet
        self.beside, self.parallel = beside, Parallel(device)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Note how long a step took, all its parts and calls together, beside the others."""
        self.parallel.wait()
        began = time.monotonic()
        yield
        self.parallel.wait()
        path = self.out / (f"seconds-{self.beside}.json" if self.beside else "seconds.json")
        if self.parallel.main:
            known = dict(read_json(path)) if path.exists() else {}
            spent = known.get(what, 0.0) + time.monotonic() - began
            write_json(path, {**known, what: spent, "device": self.parallel.device_name})

    def select(
        self, selectors: Sequence[str], budgets: Sequence[int], *, whole: bool, separate: Sequence[int]
    ) -> None:
        """Choose the layers of every selector and budget on one ground."""
        from evalsuite.distill.selection import find_selector
        from evalsuite.distill.selection.choose import select_on
        from evalsuite.distill.selection.ground import Ground
        from evalsuite.distill.selection.separate import separate_run

        ground = Ground(self.recipe, self.options, self.out / "work", device=self.device, quiet=self.quiet)
        for name in selectors:
            if whole and find_selector(name).needs == "training":
                assert ground.trunk is not None  # loaded once for both grounds
                ended, path = ground.with_options(stop=False), self.out / "whole" / f"{name}.json"
                self._said(f"{name} to its end", partial(select_on, ended, name, path, budget=max(budgets)))
            for budget in budgets:
                path = self._file(name, budget)
                self._said(f"{name} {budget}", partial(select_on, ground, name, path, budget=budget))
        alone = [
            self._said(f"layer {layer} alone", partial(separate_run, ground, layer)) for layer in separate
        ]
        if alone and self.parallel.main:
            write_json(self.out / "separate.json", alone)

    def _said(self, what: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        began = time.monotonic()
        value = work()
        _free()
        if self.parallel.main:
            spent = time.monotonic() - began
            shown = value.get("layers", value)
            print(f"{what}: {shown}, {spent:.1f} s", file=sys.stderr, flush=True)
        return value

    def _file(self, selector: str, budget: int) -> Path:
        return self.out / "layers" / f"{selector}-{budget}.json"

    def chosen(self) -> dict[tuple[str, int], dict[str, Any]]:
        """(selector, budget) → selection, of all that are there."""
        found = {}
        for path in (self.out / "layers").glob("*.json"):
            name, _, budget = path.stem.rpartition("-")
            found[name, int(budget)] = dict(read_json(path))
        return dict(sorted(found.items()))

    @property
    def sets(self) -> list[Layers]:
        """Every distinct set of softmax layers; the empty one, which the selecting process makes, last."""
        found = {tuple(value["layers"]) for value in self.chosen().values()}
        return [*sorted(found, key=lambda each: (len(each), each)), ()]

    def _unclaimed(self, *, teacher: bool) -> Iterator[Layers | None]:
        """The teacher (None) and the sets that no other process has begun, those included that are chosen
        meanwhile. What this process took stays its own until it has been through all."""
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
                    # The processes of one torchrun take every student together.
                    if self.parallel.main:
                        lock = self.out / "claims" / f"{name}.lock"
                        held.enter_context(locked(lock, wait=False))
                except RunFolderError:
                    if self.parallel.world > 1:
                        raise
                    continue
                yield new[0]

    def distill_and_answer(self, *, distilling: bool, answering: bool) -> None:
        """Make the students and ask them, as soon as there is one for every process, so that a machine
        that is taken away takes little with it. The teacher is asked first."""
        asked: list[str] = []
        for layers in self._unclaimed(teacher=answering) if distilling or answering else ():
            if layers is None:
                asked.append(str(self.recipe.teacher))
            else:
                if distilling:
                    with self.timed("distilling"):
                        self.distill(layers)
                if answering and self.student(layers).exists():
                    asked.append(str(self.student(layers)))
            if len(asked) >= self.parallel.world:
                self.answer(asked)
                asked = []
        if asked:
            self.answer(asked)

    def distill(self, layers: Layers) -> None:
        """Make the student with these softmax layers; the one without any is the trunk."""
        from evalsuite.distill import distill
        from evalsuite.distill.selection.ground import Ground

        if layers:
            student = self.recipe.student.model_copy(update={"softmax_layers": list(layers)})
            recipe = self.recipe.model_copy(update={"student": student})
            out = self.out / "distilled" / label_of(layers)
            (folder,) = distill(recipe, out, device=self.device, quiet=self.quiet)
        else:
            work = self.out / "work"
            folder = Ground(self.recipe, self.options, work, device=self.device, quiet=self.quiet).trunk_path
        self._linked(layers, folder)
        _free()

    def student(self, layers: Layers) -> Path:
        """Where the student with these softmax layers lies, once it is made."""
        return self.out / "students" / label_of(layers)

    def _linked(self, layers: Layers, folder: Path) -> None:
        """A name of its own for a student, by which the evaluator calls it."""
        link = self.student(layers)
        if self.parallel.main and not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(relpath(folder, link.parent))
        self.parallel.wait()

    def render(self, suite: str, limit: int | None) -> None:
        """Write the requests, for the teacher; students have its tokenizer and come to the run later."""
        from evalsuite.evaluator import evaluate

        teacher = self.recipe.teacher
        evaluate(suite, [], self.run, teacher=teacher, limit=limit, phases=("render",), quiet=self.quiet)

    def answer(self, paths: Sequence[str]) -> None:
        """Ask checkpoints; every process a part of them, in a run folder of its own."""
        from evalsuite.evaluator import evaluate
        from evalsuite.evaluator.layout import index_path, read_index

        rank, world = self.parallel.rank, self.parallel.world
        number = self.beside * world + rank
        run = self.run if number == 0 else self.out / f"run-{number}"
        if number > 0 and not index_path(run).is_file():
            shutil.copytree(self.run / "requests", run / "requests", dirs_exist_ok=True)
        device = str(self.parallel.device) if self.device is None or world > 1 else self.device
        mine = [path for path in paths[rank::world] if not self._asked_elsewhere(path, run)]
        with self.timed("asking"):
            if mine:
                suite = read_index(self.run).suite
                evaluate(suite, mine, run, phases=("answer",), device=device, quiet=self.quiet)
        _free()

    def _asked_elsewhere(self, path: str, here: Path) -> bool:
        """Whether another process, which may be gone by now, has all answers of a checkpoint."""
        from evalsuite.evaluator.pieces import answered
        from evalsuite.models import describe_checkpoint

        others = [run for run in sorted(self.out.glob("run*")) if run.is_dir() and run != here]
        weights = describe_checkpoint(path).weights_id if others else ""
        return any(answered(run, weights) for run in others)

    def judge(self, suite: str, budgets: Sequence[int]) -> list[Line]:
        """Record all answers and write the tables."""
        from evalsuite.evaluator import evaluate

        pieces = sorted(self.out.glob("run-*"))
        evaluate(suite, [], self.run, phases=("judge",), pieces=pieces, quiet=self.quiet)
        name_selectors(self.run, self.chosen())
        groups = groups_of(suite)
        answers = read_answers(self.run, groups)
        chosen = {key: value for key, value in self.chosen().items() if key[1] in budgets}
        asked, left = asked_whole(chosen, answers)
        if left:
            print(f"not asked everything yet: {', '.join(left)}", file=sys.stderr, flush=True)
        lines = compared(asked, answers, groups)
        teacher = next(each.label for each in read_plan(self.run).checkpoints if each.role == "teacher")
        beside = {
            name: plain_scores(answers.get(label, {}), groups)
            for name, label in (("teacher", teacher), ("no softmax layer", label_of(())))
        }
        selections = [
            with_quality(value, lines, beside["no softmax layer"])
            for (_, budget), value in asked.items()
            if budget == max(budgets)
        ]
        write_json(self.run / "selection.json", selections)
        write_text(self.out / "selectors.csv", as_csv(lines, beside))
        write_text(self.out / "selectors.md", as_markdown(lines, groups, beside))
        write_text(self.out / "scores.csv", by_benchmark(answers))
        return lines


def _free() -> None:
    """Give back what a search or a student held on the GPU."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the study."""
    from evalsuite.distill.selection import SELECTORS

    able = [name for name in SELECTORS if name != "fixed"]
    parser = argparse.ArgumentParser(
        prog="python -m evalsuite.evaluator.selection_study", description=__doc__
    )
    parser.add_argument("recipe")
    parser.add_argument("--mixer", required=True)
    parser.add_argument("--budget", type=int, nargs="+", required=True)
    parser.add_argument("--selectors", nargs="+", default=able)
    parser.add_argument("--suite", default="pocket-recall")
    parser.add_argument("--set", nargs="+", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument("--option", nargs="+", default=[], dest="options", metavar="KEY=VALUE")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--steps", nargs="+", default=list(STEPS), choices=STEPS)
    parser.add_argument(
        "--whole", action="store_true", help="also let one-swap passes run to their end, for comparison"
    )
    parser.add_argument(
        "--separate",
        type=int,
        nargs="+",
        default=[],
        metavar="LAYER",
        help="also train the one-swap student of LAYER by itself, and note its time",
    )
    share = "number of this process, where several make and ask the students of one folder"
    parser.add_argument("--beside", type=int, default=0, metavar="NUMBER", help=share)
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quiet", action="store_true")
    arguments = vars(parser.parse_args(argv))
    try:
        study(arguments.pop("recipe"), arguments.pop("out"), budgets=arguments.pop("budget"), **arguments)
    except EvalsuiteError as error:
        print(f"selection_study: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
