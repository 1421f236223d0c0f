"""Names of checkpoints: whoever takes one asks here, so that a name that fits several is never guessed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from evalsuite.foundation import ConfigError, nearest
from evalsuite.reports.run import place


class Named(Protocol):
    """What a checkpoint is called."""

    @property
    def label(self) -> str:
        """As reports print it."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its labels in the plans, and its ids."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Its folders, hub ids or names in logs."""


@dataclass(frozen=True, slots=True)
class Name:
    """The names of one checkpoint, see `Named`."""

    label: str
    names: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


def fits(name: str, named: Named) -> bool:
    """Whether a checkpoint is called so."""
    return name in (named.label, *named.names) or place(name) in map(place, named.paths)


def find(name: str, known: Sequence[Named], where: str, way_out: str = "") -> int:
    """Return the index of the only checkpoint that a name fits.

    Args:
        name: a label, with or without the suffix that a report gives it, an id or a path.
        known: the checkpoints.
        where: what takes the name, such as ``--teacher``.
        way_out: what else to do where it fits several, as the end of a sentence.

    Raises:
        ConfigError: the name fits none, or several; the message lists those.
    """
    found = [i for i, each in enumerate(known) if fits(name, each)]
    if len(found) == 1:
        return found[0]
    if not found:
        labels = [each.label for each in known]
        raise ConfigError(f"no run has a checkpoint '{name}' ({where}){nearest(name, labels)}")
    candidates = ", ".join(_described(known[i]) for i in found)
    raise ConfigError(
        f"'{name}' ({where}) is the name of {len(found)} checkpoints: {candidates}; give the name, or "
        f"another path or id, that only one of them has{way_out}"
    )


def _described(named: Named) -> str:
    paths = ", ".join(path for path in named.paths if path)
    return f"'{named.label}'{f' ({paths})' if paths else ''}"


def labels_of_weights(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Map weights_ids to labels that no other weights have.

    Args:
        pairs: weights_id and label, as a sidecar file states them; of several labels the first counts.
    """
    labels: dict[str, str] = {}
    for weights_id, label in pairs:
        labels.setdefault(weights_id, label)
    unique = unique_labels(list(map(Name, labels.values())), list(map(digits, labels)))
    return dict(zip(labels, unique, strict=True))


def digits(identifier: str) -> list[str]:
    """The first six digits of an id, and more."""
    return [identifier[:length] for length in range(6, len(identifier))] + [identifier]


def unique_labels(checkpoints: Sequence[Named], suffixes: Sequence[Sequence[str]]) -> list[str]:
    """Return the label of each checkpoint, with a suffix where another one is called the same.

    Args:
        checkpoints: with the labels that they would like.
        suffixes: of each, the best first; the last is its alone.
    """
    wanted = [
        [each.label, *(f"{each.label} ({text})" for text in texts)]
        for each, texts in zip(checkpoints, suffixes, strict=True)
    ]
    labels = []
    for i, candidates in enumerate(wanted):
        others = [j for j in range(len(wanted)) if j != i]
        taken = {label for j in others for label in wanted[j]}
        free = (
            label
            for label in candidates
            if label not in taken and not any(fits(label, checkpoints[j]) for j in others)
        )
        labels.append(next(free, candidates[-1]))
    return labels
