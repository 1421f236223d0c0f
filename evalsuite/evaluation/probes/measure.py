"""Probe students and write what their states hold to a run folder."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evalsuite.evaluation.checkpoints import LocalCheckpoint, describe_checkpoints, expand_folders
from evalsuite.evaluation.inference.engines import resolve_device
from evalsuite.evaluation.probes.haystacks import Placed, check_depths, draw_haystacks, needle_benchmark
from evalsuite.foundation import ConfigError, RunFolderError, progress
from evalsuite.models.checkpoints.load import load_checkpoint
from evalsuite.models.diagnostics.state_probe import DocumentProbe, LayerProbe, probe_states
from evalsuite.models.mixers import MIXERS, RecurrentMixer
from evalsuite.reports.records.probes import COLUMNS, FILE, PROBE_FILE, SEGMENTS
from evalsuite.reports.run import is_run_folder

DEPTHS = (0.0, 25.0, 50.0, 75.0, 100.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeWork:
    """One checkpoint and length that is still to be probed."""

    checkpoint: LocalCheckpoint
    benchmark: str
    context: int
    haystacks: tuple[Placed, ...]

    @property
    def tokens(self) -> int:
        """Tokens that the student reads."""
        return sum(len(each.haystack.tokens) for each in self.haystacks)


def plan_probes(
    run: Path,
    checkpoints: Sequence[str],
    benchmark: str,
    contexts: Sequence[int],
    *,
    depths: Sequence[float] = DEPTHS,
    documents: int = 10,
    seed: int = 0,
    data_dir: Path | str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    trust_remote_code: bool = False,
) -> list[ProbeWork]:
    """Draw the haystacks, and refuse what cannot be probed before any weights are loaded.

    A checkpoint and length whose documents are all in the run's probes, in the same dtype, is left out.

    Args:
        run: a run folder.
        checkpoints: students, or folders of them.
        benchmark: as `needle_benchmark`.
        contexts: lengths in tokens of every student's own tokenizer.
        depths, seed, data_dir: as `draw_haystacks`.
        documents: of each length and range of depths.
        device, dtype: as for `evalsuite run`.
        trust_remote_code: allow code of the checkpoints.

    Raises:
        ConfigError: options out of range, a checkpoint without recurrent layer, or a length beyond its
            positions.
        RunFolderError: `run` is no run folder.
        CheckpointError, DataError: as `describe_checkpoints` and `draw_haystacks`.
    """
    if not is_run_folder(run):
        raise RunFolderError(f"{run}: not a run folder (no run.json), so there is no place for {FILE}")
    check_depths(depths)
    if documents < 1:
        raise ConfigError(f"--documents {documents}: must be at least 1")
    chosen, marks = needle_benchmark(benchmark)
    described = describe_checkpoints(expand_folders(checkpoints), None, trust_remote_code=trust_remote_code)
    for each in described:
        _check_student(each, contexts)
    _, dtype = resolve_device(device, dtype)
    known = _known_documents(run, dtype)
    drawn: dict[tuple[str, int], tuple[Placed, ...]] = {}
    found = []
    for each in described:
        for context in dict.fromkeys(contexts):
            key = (each.tokenizer, context)
            if key not in drawn:
                drawn[key] = tuple(
                    draw_haystacks(
                        chosen,
                        marks,
                        each.text_tokenizer,
                        context,
                        depths,
                        documents,
                        data_dir=data_dir,
                        seed=seed,
                    )
                )
            wanted = {placed.haystack.doc_id for placed in drawn[key]}
            if known.get((each.weights_id, chosen.name, context)) != wanted:
                found.append(
                    ProbeWork(checkpoint=each, benchmark=chosen.name, context=context, haystacks=drawn[key])
                )
    return found


def _check_student(checkpoint: LocalCheckpoint, contexts: Sequence[int]) -> None:
    mixers = [MIXERS[name] for name in getattr(checkpoint.config, "mixers", ())]
    if not any(issubclass(kind, RecurrentMixer) for kind in mixers):
        raise ConfigError(f"{checkpoint.path}: has no recurrent layer, so there is no state to probe")
    for context in contexts:
        if not 1 <= context <= checkpoint.positions:
            raise ConfigError(
                f"--lengths {context}: {checkpoint.path} reads 1 to {checkpoint.positions:,} tokens"
            )


def _known_documents(run: Path, dtype: str) -> dict[tuple[str, str, int], set[str]]:
    """Documents in the probes of a run, by checkpoint, benchmark and context."""
    path = Path(run) / FILE
    if not path.is_file():
        return {}
    frame = PROBE_FILE.read(path)
    frame = frame[frame["dtype"] == dtype]
    found: dict[tuple[str, str, int], set[str]] = {}
    documents = frame[["weights_id", "benchmark", "context", "doc_id"]].drop_duplicates()
    for weights_id, benchmark, context, doc_id in documents.itertuples(index=False):
        found.setdefault((weights_id, benchmark, context), set()).add(doc_id)
    return found


def measure_probes(
    run: Path,
    work: Sequence[ProbeWork],
    *,
    device: str = "auto",
    dtype: str = "auto",
    trust_remote_code: bool = False,
    quiet: bool = False,
) -> pd.DataFrame:
    """Probe, one model at a time; every length that is finished is written.

    Args:
        run: the folder whose `probes.parquet` is written.
        work: as `plan_probes` returns it, for the same device and dtype.
        device, dtype: as for `evalsuite run`.
        trust_remote_code: allow code of the checkpoints.
        quiet: no progress bar.

    Returns:
        The rows that were measured, with the columns of `evalsuite.reports.records.probes`.

    Raises:
        DataError: a number is not finite, or a damaged `probes.parquet`.
        RunFolderError: the folder cannot be written.
    """
    device, dtype = resolve_device(device, dtype)
    frames = [pd.DataFrame(columns=list(COLUMNS))]
    total = sum(len(each.haystacks) for each in work)
    loaded: Any = None
    with progress(total=total, what="probe", unit="document", quiet=quiet) as bar:
        for each in work:
            if loaded is None or loaded.weights_id != each.checkpoint.weights_id:
                loaded = load_checkpoint(
                    each.checkpoint.path,
                    dtype=dtype,
                    device=device,
                    trust_remote_code=trust_remote_code,
                    with_tokenizer=False,
                )
            placed = {one.haystack.doc_id: one for one in each.haystacks}
            rows: list[dict[str, Any]] = []
            for probe in probe_states(loaded.model, [one.haystack for one in each.haystacks]):
                about = {
                    "weights_id": loaded.weights_id,
                    "dtype": dtype,
                    "benchmark": each.benchmark,
                    "context": each.context,
                    "depth": placed[probe.doc_id].depth,
                }
                rows += [about | row for row in _rows(probe)]
                bar.update(1)
            frames.append(pd.DataFrame(rows)[list(COLUMNS)])
            PROBE_FILE.add(run, frames[-1])
    return pd.concat(frames[1:] or frames, ignore_index=True)


def _rows(probe: DocumentProbe) -> Iterator[dict[str, Any]]:
    about = {
        "doc_id": probe.doc_id,
        "answer_tokens": probe.answer_tokens,
        "answer_right": probe.answer_right,
        "answer_logprob": probe.answer_logprob,
    }
    for layer in probe.layers:
        for number, (segment, tokens) in enumerate(zip(SEGMENTS, probe.segment_tokens, strict=True)):
            if layer.norm is None and segment != "question":
                continue
            numbers = _numbers(layer, number)
            for head, readout in enumerate(layer.readout):
                yield {
                    **about,
                    "layer": layer.layer,
                    "mixer": layer.mixer,
                    "head": head,
                    "segment": segment,
                    "tokens": tokens,
                    **{name: values[head] for name, values in numbers.items()},
                    "readout": readout if segment == "question" else np.nan,
                }


def _numbers(layer: LayerProbe, segment: int) -> Mapping[str, Any]:
    """The numbers of a segment by name, each [heads]."""
    names = ("log_decay", "slowest_log_decay", "beta", "write", "norm", "rank", "retained")
    arrays = {name: getattr(layer, name) for name in names}
    nothing = np.full(len(layer.readout), np.nan)
    return {name: nothing if array is None else array[segment] for name, array in arrays.items()}
