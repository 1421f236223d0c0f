"""What a verdict is about: the benchmarks that a policy names, and how many documents errors may exclude."""

from collections.abc import Sequence
from dataclasses import replace

from evalsuite.foundation import ConfigError, nearest
from evalsuite.reports import formatting
from evalsuite.reports.analysis.result_tensor import ResultTensor
from evalsuite.reports.analysis.scopes import weights_of
from evalsuite.reports.gate.policy import PolicyRule
from evalsuite.reports.rules.evidence import Evidence, matches
from evalsuite.reports.rules.measurement import NotMeasured


def only_benchmarks(tensor: ResultTensor, names: Sequence[str]) -> ResultTensor:
    """Return the results of the named benchmarks, with a warning that names the others; all if none is.

    Raises:
        ConfigError: no run has a benchmark of a name.
    """
    known = [benchmark.name for benchmark in tensor.merged.benchmarks]
    for name in names:
        if name not in known:
            raise ConfigError(f"no run has a benchmark '{name}' to gate{nearest(name, known)}")
    left_out = [name for name in known if name not in names]
    if not names or not left_out:
        return tensor
    kept = tuple(benchmark for benchmark in tensor.merged.benchmarks if benchmark.name in names)
    warning = (
        f"Only {formatting.count(len(kept))} of {formatting.count(len(known))} benchmarks are gated; "
        f"left out by name: {', '.join(left_out)}."
    )
    return replace(
        tensor,
        merged=replace(tensor.merged, benchmarks=kept),
        cells=tuple(cell for cell in tensor.cells if cell.benchmark.name in names),
        incomplete=tuple(cell for cell in tensor.incomplete if cell.benchmark in names),
        warnings=(warning, *tensor.warnings),
    )


def measured_benchmarks(tensor: ResultTensor) -> list[str]:
    """Benchmarks that are measured for every checkpoint, of an unfinished run; empty of a finished one."""
    lacking = {cell.benchmark for cell in tensor.incomplete}
    there = [each.benchmark.name for each in tensor.cells if each.benchmark.name not in lacking]
    return list(dict.fromkeys(there)) if lacking else []


def too_many_excluded(
    evidence: Evidence, rule: PolicyRule, protocol: str | None, checkpoint: int, limit: float
) -> NotMeasured | None:
    """Why a rule is not measured if `errors: exclude` leaves out more than `limit` of its documents."""
    tensor = evidence.tensor
    if not tensor.selection.excludes_errors or rule.kind.protocols == "none":
        return None
    left_out = {} if protocol is None else evidence.left_out(rule, protocol, checkpoint)
    cells = [
        cell
        for cell in tensor.cells
        if protocol in (None, cell.protocol) and checkpoint in cell.present and matches(rule, cell, left_out)
    ]
    shares = [cell.excluded / (cell.excluded + len(cell.documents)) for cell in cells]
    # Its share of an average is also the most by which excluded documents can change it.
    share = sum(weight * part for weight, part in zip(weights_of(cells), shares, strict=True))
    if share <= limit:
        return None
    names = dict.fromkeys(cell.benchmark.name for cell in cells if cell.excluded)
    return NotMeasured(
        f"errors: exclude leaves out {formatting.percent(share)} % of the documents ({', '.join(names)}), "
        f"more than max_excluded, {formatting.percent(limit)} %: what fails is no random sample; "
        "repeat the run to respond to them, or count errors as wrong"
    )
