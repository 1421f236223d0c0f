"""Warnings of a report: what is missing, undefined, incomplete, above the teacher, or an artefact."""

from collections.abc import Iterator, Sequence

from evalsuite.foundation import counted
from evalsuite.foundation.taxonomy import PROTOCOL_TITLES, PROTOCOLS, names_answer
from evalsuite.reports.analysis.informative import InformativeRow
from evalsuite.reports.analysis.result_tensor import ResultTensor
from evalsuite.reports.analysis.rows import AverageRow, DropRow, GapRow
from evalsuite.reports.analysis.scopes import ALL
from evalsuite.reports.records.merging import CheckpointEntry
from evalsuite.reports.records.sidecars import DoctorResult


def report_warnings(
    tensor: ResultTensor,
    averages: Sequence[AverageRow],
    drops: Sequence[DropRow],
    gaps: Sequence[GapRow],
    informative: Sequence[InformativeRow],
    doctor: Sequence[DoctorResult],
) -> tuple[str, ...]:
    """All warnings of a report, those of reading its runs first; one sentence or two each."""
    return (
        *tensor.warnings,
        *unread_contexts(tensor),
        *_out_of_distribution(tensor),
        *_single_documents(tensor),
        *_missing_teachers(tensor),
        *_not_informative(tensor, informative),
        *_undefined_recoveries(tensor, averages),
        *_incomplete_averages(tensor, averages),
        *_above_teacher(tensor, averages),
        *_gains_by_benchmark(tensor, drops, gaps),
        *teachers_below_chance(tensor.checkpoints, gaps),
        *_numerical_artefacts(tensor, gaps, doctor),
    )


def unread_contexts(tensor: ResultTensor) -> list[str]:
    """Contexts that checkpoints are not evaluated on: a sentence per set of checkpoints and benchmarks."""
    who: dict[tuple[str, int | None, str], set[int]] = {}
    for (checkpoint, (benchmark, _, context)), why in tensor.unread.items():
        who.setdefault((benchmark, context, why), set()).add(checkpoint)
    groups = [((why, tuple(sorted(found))), name, context) for (name, context, why), found in who.items()]
    return [
        f"{places}: not read by {_labels(tensor, checkpoints)}, which {why}."
        for (why, checkpoints), places in _places(tensor, groups)
    ]


def _out_of_distribution(tensor: ResultTensor) -> list[str]:
    """Cells with texts longer than the positions that a checkpoint's config states, in the same way."""
    groups = []
    for cell in tensor.cells:
        beyond = zip(cell.present, cell.out_of_distribution, strict=False)
        if who := tuple(checkpoint for checkpoint, documents in beyond if documents):
            groups.append((("", who), cell.benchmark.name, cell.context))
    return [
        f"{places}: out of distribution for {_labels(tensor, checkpoints)}, beyond the positions that the "
        "config states (--max-length)."
        for (_, checkpoints), places in _places(tensor, groups)
    ]


Group = tuple[str, tuple[int, ...]]
"""A reason, and the checkpoints that it holds for."""


def _places(
    tensor: ResultTensor, found: Sequence[tuple[Group, str, int | None]]
) -> Iterator[tuple[Group, str]]:
    """Groups, and their benchmarks and contexts: ``S-NIAH-1, S-NIAH-2 at 1,024, 2,048 tokens``."""
    titles = {benchmark.name: benchmark.title for benchmark in tensor.merged.benchmarks}
    contexts: dict[tuple[Group, str], dict[int, None]] = {}
    for group, benchmark, context in found:
        where = contexts.setdefault((group, titles[benchmark]), {})
        where.update({} if context is None else {context: None})
    benchmarks: dict[tuple[Group, tuple[int, ...]], list[str]] = {}
    for (group, title), where in contexts.items():
        benchmarks.setdefault((group, tuple(sorted(where))), []).append(title)
    for (group, lengths), names in benchmarks.items():
        at = f" at {', '.join(f'{length:,}' for length in lengths)} tokens" if lengths else ""
        yield group, f"{', '.join(names)}{at}"


def _labels(tensor: ResultTensor, checkpoints: Sequence[int]) -> str:
    return ", ".join(f"'{tensor.checkpoints[i].label}'" for i in checkpoints)


def _single_documents(tensor: ResultTensor) -> list[str]:
    """Cells of one document, for which no interval exists."""
    return [
        f"{cell.benchmark.title}: one {'document' if cell.clusters is None else 'cluster of documents'} "
        f"under {PROTOCOL_TITLES[cell.protocol]} is too few for an average."
        for cell in tensor.cells
        if cell.independent_units < 2
    ]


def _undefined_recoveries(tensor: ResultTensor, averages: Sequence[AverageRow]) -> list[str]:
    """Averages over all benchmarks whose recovery is undefined."""
    return [
        f"'{tensor.checkpoints[row.checkpoint].label}': recovery under {PROTOCOL_TITLES[row.protocol]} is "
        "undefined: "
        f"{row.recovery.why}."
        for row in averages
        if row.scope == ALL and tensor.checkpoints[row.checkpoint].teacher is not None and row.recovery.why
    ]


def _not_informative(tensor: ResultTensor, informative: Sequence[InformativeRow]) -> list[str]:
    """Teachers that are at chance everywhere, and benchmarks that informative recovery leaves out."""
    benchmarks = {benchmark.name: benchmark for benchmark in tensor.merged.benchmarks}
    groups: dict[tuple[int, str], list[InformativeRow]] = {}
    for row in informative:
        groups.setdefault((row.teacher, row.protocol), []).append(row)
    found = []
    for (teacher, protocol), rows in groups.items():
        label = tensor.checkpoints[teacher].label
        if not any(row.is_informative for row in rows):
            found.append(
                f"Nothing was measured under {PROTOCOL_TITLES[protocol]}: on no benchmark is '{label}' "
                "above chance with "
                "answers that it names. Recoveries compare guesses."
            )
            continue
        barred = {row.benchmark: row.why for row in rows if benchmarks[row.benchmark].not_leading}
        left = [
            benchmarks[row.benchmark].title
            for row in rows
            if not row.is_informative and row.benchmark not in barred
        ]
        at_chance = f"{', '.join(left)}: the teacher is not above chance there, or rarely names an answer"
        reasons = [at_chance] if left else []
        reasons += [f"{benchmarks[name].title}: {why}" for name, why in barred.items()]
        if reasons:
            found.append(
                f"Informative recovery of the students of '{label}' under {PROTOCOL_TITLES[protocol]} "
                f"leaves out {'; '.join(reasons)}."
            )
    return found


def _missing_teachers(tensor: ResultTensor) -> list[str]:
    """Benchmarks with scores of students but not of their teacher."""
    found = []
    for cell in tensor.cells:
        teachers = {tensor.checkpoints[i].teacher for i in cell.present} - {None}
        for teacher in sorted(index for index in teachers if index is not None):
            if teacher not in cell.present:
                place = f"{cell.benchmark.title}{f' at {cell.context:,} tokens' if cell.context else ''}"
                found.append(
                    f"{place}: the teacher '{tensor.checkpoints[teacher].label}' has no comparable scores "
                    f"under {PROTOCOL_TITLES[cell.protocol]}; it does not count toward recovery."
                )
    return found


def _incomplete_averages(tensor: ResultTensor, averages: Sequence[AverageRow]) -> list[str]:
    """Averages over a part of the benchmarks, grouped by that part."""
    groups: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for row in averages:
        if row.scope == ALL and row.missing:
            key = row.protocol, row.missing, row.benchmarks
            groups.setdefault(key, []).append(f"'{tensor.checkpoints[row.checkpoint].label}'")
    found = []
    for (protocol, missing, there), labels in groups.items():
        one = len(labels) == 1
        average = "its average is" if one else "their averages are"
        without_rank = f"and {'has' if one else 'have'} no rank."
        if len(missing) > len(there):
            text = (
                f"{'has' if one else 'have'} only {', '.join(there)} under {PROTOCOL_TITLES[protocol]}: "
                f"{average} over these "
                f"{without_rank}"
            )
        else:
            text = (
                f"{'lacks' if one else 'lack'} {', '.join(missing)} under {PROTOCOL_TITLES[protocol]}: "
                f"{average} over the "
                f"other {len(there)} {without_rank}"
            )
        found.append(f"{', '.join(labels)} {text}")
    return found


def _above_teacher(tensor: ResultTensor, averages: Sequence[AverageRow]) -> list[str]:
    """Students that are proven to score above their teacher."""
    found = []
    for protocol in PROTOCOLS:
        labels = [
            f"'{tensor.checkpoints[row.checkpoint].label}'"
            for row in averages
            if (row.scope, row.protocol) == (ALL, protocol)
            and row.recovery.interval is not None
            and row.recovery.interval.low > 1
        ]
        if labels:
            whose = "scores above its" if len(labels) == 1 else "score above their"
            found.append(
                f"{', '.join(labels)} {whose} teacher under {PROTOCOL_TITLES[protocol]}: recovery above "
                "100 % is learned "
                "during training and may hide losses. The headline names the best other student."
            )
    return found


def _gains_by_benchmark(tensor: ResultTensor, drops: Sequence[DropRow], gaps: Sequence[GapRow]) -> list[str]:
    """Every benchmark on which students are proven to exceed their teacher. A perplexity has no recovery."""
    titles = {benchmark.name: benchmark.title for benchmark in tensor.merged.benchmarks}
    lower = {(cell.benchmark.name, cell.protocol) for cell in tensor.cells if cell.is_perplexity}
    below_chance = {row.benchmark for row in gaps if row.teacher_below_chance}
    found = []
    for protocol in PROTOCOLS:
        gained: dict[str, set[int]] = {}
        for row in drops:
            if row.protocol == protocol and (row.benchmark, protocol) not in lower and row.kind == "gain":
                gained.setdefault(row.benchmark, set()).add(row.checkpoint)
        listed = []
        for name, checkpoints in sorted(gained.items(), key=lambda item: -len(item[1])):
            students = f"{counted(len(checkpoints), 'student')} in {titles[name]}"
            is_below = protocol == "generation" and name in below_chance
            listed.append(f"{students} (the teacher is below chance)" if is_below else students)
        if listed:
            found.append(
                f"Significantly above their teacher under {PROTOCOL_TITLES[protocol]}: "
                f"{', '.join(listed)}. Recovery offsets "
                "such gains against losses on other benchmarks."
            )
    return found


def teachers_below_chance(checkpoints: Sequence[CheckpointEntry], gaps: Sequence[GapRow]) -> list[str]:
    """Teachers whose generation score on documents of both protocols is below chance."""
    found: dict[int, str] = {}
    for row in gaps:
        teacher = checkpoints[row.checkpoint].teacher
        if (
            row.benchmark == ALL
            and row.teacher_below_chance
            and row.chance is not None
            and teacher is not None
        ):
            unnamed = sum(share for name, share in row.outcomes["teacher"].items() if not names_answer(name))
            found.setdefault(
                teacher,
                f"On benchmarks with both protocols '{checkpoints[teacher].label}' itself scores "
                f"{100 * row.generation['teacher']:.1f} % under generation, below the chance level of "
                f"{100 * row.chance:.1f} % ({100 * unnamed:.0f} % of its responses name no choice): its "
                "students can lose little there, so a small gap is weak evidence.",
            )
    return list(found.values())


def _numerical_artefacts(
    tensor: ResultTensor, gaps: Sequence[GapRow], doctor: Sequence[DoctorResult]
) -> list[str]:
    """Failed checks of the doctor, and gaps that its deviations could explain."""
    changed = {examined.weights_id: examined.changed for examined in doctor}
    found = [
        f"Doctor, '{examined.label}': {check.name}: {check.text or check.status}"
        for examined in doctor
        for check in examined.checks
        if check.status != "ok"
    ]
    for row in gaps:
        checkpoint = tensor.checkpoints[row.checkpoint]
        if row.benchmark != ALL or checkpoint.teacher is None:
            continue
        teacher = tensor.checkpoints[checkpoint.teacher]
        bound = changed.get(checkpoint.weights_id, 0.0) + changed.get(teacher.weights_id, 0.0)
        if bound > 0 and abs(row.gap.point) <= bound:
            found.append(
                f"'{checkpoint.label}': its gap of {100 * row.gap.point:.1f} points is within what "
                f"numerical deviations could explain ({100 * bound:.1f} points of changed responses)."
            )
    return found
