"""Cells of a report: the scores of one benchmark under one protocol at one context, as arrays."""

from dataclasses import dataclass, field

import numpy as np

from evalsuite.reports.records.merging import CellKey
from evalsuite.reports.run import Benchmark, ProtocolSettings
from evalsuite.reports.statistics.seeds import seed_effect


@dataclass(frozen=True, slots=True)
class Cell:
    """The scores of one benchmark under one protocol at one context."""

    benchmark: Benchmark
    protocol: str
    context: int | None
    seeds: tuple[int, ...]
    present: tuple[int, ...]
    """Indices of the checkpoints in this cell: the rows of the arrays below."""
    documents: np.ndarray
    """[D] doc_ids, sorted"""
    values: np.ndarray
    """[C, S, D] values of the plan's metric"""
    outcomes: np.ndarray
    """[C, S, D] indices into OUTCOMES"""
    lines: np.ndarray
    """[C, S, D] number of the row in its score file, from 1"""
    score_files: np.ndarray
    """[C, S, D] index into `ResultTensor.score_files`"""
    chance: np.ndarray | None
    """[D] chance level as a fraction; None if unknown"""
    units: np.ndarray
    """[C, S, D] for perplexities: number of units of each document; else 1"""
    prompt_hashes: np.ndarray
    """[D] prompt_hash, equal for all checkpoints"""
    clusters: np.ndarray | None = None
    """[D] cluster codes from 0; None for independent documents"""
    answers: np.ndarray = field(default_factory=lambda: np.zeros((0, 0, 0), np.int32))
    """[C, S, D] under log-likelihood the index of the choice with the highest summed log-probability, under
    generation a code of the extracted answer; −1 for none"""
    scored_answers: np.ndarray = field(default_factory=lambda: np.zeros((0, 0, 0), np.int32))
    """[C, S, D] index of the choice that the metric picks; −1 where unknown, and under generation"""
    answer_names: tuple[str, ...] = ()
    """Under generation, the extracted answer that each code stands for"""
    out_of_distribution: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """[C] documents with a text longer than the positions that the checkpoint's config states"""
    closed_by_force: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """[C] documents with a response whose thought was closed by force"""
    excluded: int = 0
    """Documents that are left out because the response of any of the checkpoints is an error"""

    @property
    def independent_units(self) -> int:
        """Number of clusters, or of documents where there are none."""
        return len(self.documents) if self.clusters is None else int(self.clusters.max()) + 1

    @property
    def plan(self) -> ProtocolSettings:
        """The plan of this benchmark under this protocol."""
        return self.benchmark.protocols[self.protocol]  # type: ignore[index]

    @property
    def is_perplexity(self) -> bool:
        """Whether lower is better."""
        return self.plan.direction == "lower"

    @property
    def key(self) -> CellKey:
        """Benchmark, protocol, context."""
        return self.benchmark.name, self.protocol, self.context

    @property
    def planned(self) -> int:
        """Number of documents in the plan; a partial cell has fewer."""
        return self.plan.planned(self.context)

    def row(self, checkpoint: int | None) -> int | None:
        """The row of a checkpoint; None if it is not in this cell."""
        return (
            self.present.index(checkpoint) if checkpoint is not None and checkpoint in self.present else None
        )

    def scores(self) -> np.ndarray:
        """Values averaged over seeds. [C, D]"""
        return self.values.mean(axis=1)

    def seed_variance(self) -> np.ndarray:
        """Variance of each row's mean due to the sampling seeds. [C]"""
        effects = [seed_effect(values.T) for values in self.values]
        return np.array([effect.seed_variance if effect else 0.0 for effect in effects])
