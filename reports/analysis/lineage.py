"""Read the lineage of a checkpoint: its mixers, training tokens, recipe and teacher.

Lineages come from `lineage.json` in a checkpoint's folder, some of them hand-written: a value that is absent
or of another type becomes None, never an error.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalsuite.foundation import counted
from evalsuite.reports.run import Checkpoint

TITLES_OF_OLD_LINEAGES = {
    "softmax": "softmax",
    "sliding_window": "sliding window",
    "linear_attention": "linear attention",
    "retnet": "RetNet",
    "gla": "GLA",
    "mlstm": "mLSTM",
    "deltanet": "DeltaNet",
    "gated_deltanet": "Gated DeltaNet",
    "kda": "KDA",
    "hgrn2": "HGRN2",
    "mamba2": "Mamba2",
    "metala": "MetaLA",
    "rebased": "ReBased",
    "hedgehog": "Hedgehog",
}
"""Titles of mixers for lineages that do not state them (before schema 7); nothing is added."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One training stage of a checkpoint."""

    name: str
    objective: str
    tokens: int | None
    settings: tuple[tuple[str, str], ...] = ()
    """Everything that the lineage states of the stage, such as its rate and length, by name."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """The lineage of a checkpoint; None or empty for what is not stated."""

    recipe: str | None
    recipe_hash: str | None
    seed: int | None
    mixers: tuple[str, ...]
    """One per layer; empty if unknown."""
    titles: Mapping[str, str]
    """Mixer → its name in text."""
    taxonomy: Mapping[str, Mapping[str, Any]]
    """Mixer → its update, decay, granularity and state_bytes of a layer, in runs that state them."""
    state_bytes: int | None
    """Bytes of all layers' caches that do not grow with the context; None in runs that do not state them."""
    softmax_heads: Mapping[int, tuple[int, ...]]
    """Recurrent layer → its query heads that stay softmax, both counted from 0."""
    windows: Mapping[str, int]
    """Mixer → its window in tokens, that of a sliding window or next to a recurrence."""
    stages: tuple[Stage, ...]
    tokens: int | None
    """Tokens trained on, over all stages, including those of the checkpoints that training started from."""
    distinct_tokens: int | None
    """Tokens of the last training run without those that it read again."""
    ancestors: tuple[str, ...]
    """The students that training started from, oldest first."""
    parent_id: str | None
    """weights_id of the last of them."""
    teacher_path: str | None
    teacher_id: str | None
    selector: str | None
    complete: bool
    """False for an intermediate checkpoint."""
    variant_of: str | None
    """The checkpoint whose weights or states are rounded, and to what."""

    @property
    def main_mixer(self) -> str | None:
        """The mixer of most layers that are not softmax; None if unknown or all softmax."""
        others = Counter(mixer for mixer in self.mixers if mixer != "softmax")
        return others.most_common(1)[0][0] if others else None

    @property
    def main_taxonomy(self) -> Mapping[str, Any]:
        """Of the mixer of most layers that are not softmax; empty if unknown."""
        return self.taxonomy.get(self.main_mixer or "", {})

    @property
    def softmax_layers(self) -> tuple[int, ...]:
        """Layers with softmax attention, counted from 0."""
        return tuple(i for i, mixer in enumerate(self.mixers) if mixer == "softmax")

    @property
    def layers(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Mixer and softmax heads of each layer; empty if unknown."""
        return tuple((mixer, self.softmax_heads.get(i, ())) for i, mixer in enumerate(self.mixers))

    @property
    def is_hybrid(self) -> bool:
        """Whether the layers do not all use the same mixer, or have softmax heads."""
        return len(set(self.mixers)) > 1 or bool(self.softmax_heads)

    @property
    def is_plain(self) -> bool:
        """Whether all layers use the same mixer, and no recurrence has a window."""
        return not self.is_hybrid and not self.windows.keys() - {"sliding_window"}

    @property
    def family(self) -> str:
        """Such as ``KDA``, or ``KDA hybrids`` with other layers or windows; empty if unknown."""
        main = self.main_mixer
        if main is None:
            return ""
        return self.titles.get(main, main) + ("" if self.is_plain else " hybrids")

    def describe_mixers(self) -> str:
        """Such as ``Gated DeltaNet``, ``8 × softmax + 22 × GLA (window 256)`` or ``KDA + 10 softmax heads``;
        empty if unknown."""
        counts = Counter(self.mixers)
        softmax_first = sorted(counts.items(), key=lambda item: item[0] != "softmax")
        parts = [f"{count} × {self._describe(name)}" for name, count in softmax_first]
        if len(counts) == 1:
            parts = [self._describe(self.mixers[0])]
        if heads := sum(map(len, self.softmax_heads.values())):
            parts.append(counted(heads, "softmax head"))
        return " + ".join(parts)

    def _describe(self, mixer: str) -> str:
        title = self.titles.get(mixer, mixer)
        if mixer not in self.windows:
            return title
        return f"{title} ({'' if mixer == 'sliding_window' else 'window '}{self.windows[mixer]})"


def lineage_of(checkpoint: Checkpoint) -> Lineage:
    """Read the lineage of a checkpoint."""
    raw = checkpoint.lineage
    ancestors = _mappings(raw.get("ancestors"))
    recipe, teacher, selection = raw.get("recipe"), raw.get("teacher"), raw.get("selection")
    stages = tuple(
        Stage(
            str(stage.get("name", "")),
            str(stage.get("objective", "")),
            _whole(stage.get("tokens")),
            tuple(sorted((str(name), str(value)) for name, value in stage.items())),
        )
        for stage in _mappings(raw.get("stages"))
    )
    known = [stage.tokens for stage in stages if stage.tokens is not None]
    tokens = _whole(raw.get("total_tokens", raw.get("tokens")))
    return Lineage(
        recipe=_text(recipe.get("name") if isinstance(recipe, dict) else recipe),
        recipe_hash=_text(recipe.get("hash")) if isinstance(recipe, dict) else None,
        seed=_whole(raw.get("seed")),
        mixers=_names(raw.get("mixers")),
        titles=TITLES_OF_OLD_LINEAGES | _titles(raw.get("mixer_titles")),
        taxonomy=_taxonomy(raw.get("taxonomy")),
        state_bytes=_whole(raw.get("state_bytes")),
        softmax_heads=_heads(raw.get("softmax_heads")),
        windows=_windows(raw.get("windows")),
        stages=stages,
        tokens=tokens if tokens is not None else sum(known) if known else None,
        distinct_tokens=_whole(raw.get("distinct_tokens")),
        ancestors=tuple(map(_ancestor, ancestors)),
        parent_id=_text(ancestors[-1].get("weights_id")) if ancestors else None,
        teacher_path=_text(teacher.get("path")) if isinstance(teacher, dict) else None,
        teacher_id=_text(teacher.get("weights_id") if isinstance(teacher, dict) else teacher),
        selector=_text(selection.get("selector") if isinstance(selection, dict) else raw.get("selector")),
        complete=raw.get("complete") is not False,
        variant_of=_variant_of(raw.get("variant_of")),
    )


def _variant_of(raw: Any) -> str | None:
    """Such as ``kda 3f9a1c… with int8 weights, bf16 state``."""
    if not isinstance(raw, dict):
        return None
    settings = ", ".join(f"{raw[part]} {part}" for part in ("weights", "state") if _text(raw.get(part)))
    return f"{raw.get('label', '')} {raw.get('weights_id', '')} with {settings}"


def _ancestor(raw: dict[str, Any]) -> str:
    recipe = raw.get("recipe")
    name, label = recipe.get("name") if isinstance(recipe, dict) else None, _text(raw.get("label"))
    return f"{label} of {name}" if label and name else str(raw.get("weights_id", ""))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Sequence) and all(isinstance(name, str) for name in value):
        return tuple(value)
    return ()


def _titles(value: Any) -> dict[str, str]:
    found = value.items() if isinstance(value, dict) else ()
    return {str(name): title for name, title in found if isinstance(title, str)}


def _taxonomy(value: Any) -> dict[str, dict[str, Any]]:
    found = value.items() if isinstance(value, dict) else ()
    return {str(name): place for name, place in found if isinstance(place, dict)}


def _heads(value: Any) -> dict[int, tuple[int, ...]]:
    found = value.items() if isinstance(value, dict) else ()
    return {
        int(layer): tuple(head for head in heads if isinstance(head, int))
        for layer, heads in found
        if str(layer).isdecimal() and isinstance(heads, list | tuple)
    }


def _windows(value: Any) -> dict[str, int]:
    found = {str(name): _whole(size) for name, size in value.items()} if isinstance(value, dict) else {}
    return {name: size for name, size in found.items() if size}


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
