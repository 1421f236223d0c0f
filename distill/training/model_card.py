"""The model card of a student: what it is, where it comes from, what it was trained on, how to load it.

It states what the recipe and the lineage record, and nothing else; what an evaluation must find out is
marked as not measured.
"""

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from evalsuite.distill.recipe import Recipe
from evalsuite.distill.recipe.data_sources import HubSourceConfig, TableSourceConfig
from evalsuite.foundation import DataError
from evalsuite.foundation.model_card import LOSS_STATEMENT, read_card, table, write_card

FILE = "README.md"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
NOT_RECORDED = "not recorded"
LOAD = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{label}", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("{label}")"""


def model_card(lineage: Mapping[str, Any], recipe: Recipe) -> str:
    """README.md of a checkpoint.

    Args:
        lineage: as `provenance.build_lineage` returns it.
        recipe: that the checkpoint was trained with.
    """
    label = str(lineage["label"])
    sections = {
        "Lineage": _lineage(lineage),
        "Training": _training(lineage),
        "Data": _data(recipe),
        "Overlap with benchmarks": _overlap(recipe),
        LOSS_STATEMENT: (
            f"Not measured. `evalsuite run SUITE --checkpoint {label} --teacher TEACHER --out RUN` evaluates "
            "the student next to its teacher; `evalsuite export RUN --format model-card --out DIR` then "
            "states here what was retained, what was lost and what was not measured."
        ),
        "How to load it": f"With evalsuite installed:\n\n```python\n{LOAD.format(label=label)}\n```",
    }
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in sections.items())
    return write_card(_front_matter(lineage, recipe), f"# {label}\n\n{_summary(lineage, recipe)}\n\n{body}")


def _front_matter(lineage: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    mixers = sorted(set(lineage["mixers"] or ()))
    found: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["evalsuite", *(["distillation", *mixers] if recipe.teacher is not None else [])],
    }
    if recipe.teacher is not None and _is_hub_id(recipe.teacher):
        found["base_model"] = [recipe.teacher.partition("@")[0]]
    license_name = _license_of(recipe.teacher)
    if license_name is not None:
        found["license"] = license_name
    datasets = [source.dataset for source in recipe.data.values() if isinstance(source, HubSourceConfig)]
    if datasets:
        found["datasets"] = list(dict.fromkeys(datasets))
    return found


def _is_hub_id(name: str) -> bool:
    return _HUB_ID.fullmatch(name.partition("@")[0]) is not None and not Path(name).exists()


def _license_of(teacher: str | None) -> str | None:
    """License that the card of a local teacher states; None if unknown."""
    path = None if teacher is None else Path(teacher) / FILE
    if path is None or not path.is_file():
        return None
    try:
        stated = read_card(path.read_text(), str(path))[0].get("license")
    except (OSError, UnicodeDecodeError, DataError):
        # A stranger's card that cannot be read states no license; it must not end the training.
        return None
    return stated if isinstance(stated, str) else None


def _summary(lineage: Mapping[str, Any], recipe: Recipe) -> str:
    if recipe.teacher is None or lineage["mixers"] is None:
        text = "A Transformer trained from random weights."
    else:
        counts = Counter(lineage["mixers"])
        layers = ", ".join(f"{count} × {mixer}" for mixer, count in counts.most_common())
        text = f"A student of {_shown(recipe.teacher)} with other token mixers. Layers: {layers}."
        if heads := lineage.get("softmax_heads"):
            places = "; ".join(f"{layer}: {', '.join(map(str, heads[layer]))}" for layer in heads)
            text += f" Softmax heads by layer, next to its recurrence: {places}."
    if not lineage["complete"]:
        text += " This is an intermediate checkpoint: its training was not finished."
    return text


def _lineage(lineage: Mapping[str, Any]) -> str:
    teacher = lineage["teacher"]
    selection = lineage["selection"]
    rows = [
        ["teacher", _reference(teacher) if teacher else "none"],
        *([f"the teacher's ancestor {i}", _reference(a)] for i, a in _numbered(teacher, "ancestors")),
        *([f"ancestor {i}", _reference(a)] for i, a in _numbered(lineage, "ancestors")),
        ["recipe", f"{lineage['recipe']['name']} (hash {lineage['recipe']['hash']})"],
        ["source of the recipe", str(lineage["recipe"]["source"] or NOT_RECORDED)],
        ["seed", str(lineage["seed"])],
        *([["layers selected by", str(selection["selector"])]] if selection else []),
        ["versions", ", ".join(f"{name} {version}" for name, version in lineage["versions"].items())],
        ["precision and device", f"{lineage['precision']}, {lineage['device']}"],
        ["created", str(lineage["created"])],
    ]
    return table(["", ""], rows)


def _numbered(holder: Mapping[str, Any] | None, key: str) -> list[tuple[int, Mapping[str, Any]]]:
    return list(enumerate((holder or {}).get(key, ()), 1))


def _reference(checkpoint: Mapping[str, Any]) -> str:
    """Name, weights and training of a checkpoint that another one comes from."""
    name = str(checkpoint.get("label") or _shown(str(checkpoint.get("path", NOT_RECORDED))))
    parts = [f"weights {checkpoint.get('weights_id') or NOT_RECORDED}"]
    if "tokens" in checkpoint:
        parts.append(f"{checkpoint['tokens']:,} tokens")
    if isinstance(checkpoint.get("recipe"), Mapping):
        parts.append(f"recipe {checkpoint['recipe'].get('name')}")
    return f"{name} ({', '.join(parts)})"


def _training(lineage: Mapping[str, Any]) -> str:
    rows = [
        [
            stage["name"],
            stage["objective"],
            stage["trainable"],
            f"{stage['tokens']:,}",
            f"{stage['seq_len']:,}",
            f"{stage['lr']:g}",
        ]
        for stage in lineage["stages"]
    ]
    header = ["stage", "objective", "trainable", "tokens", "sequence length", "learning rate"]
    counts = (
        f"{lineage['tokens']:,} tokens, {lineage['distinct_tokens']:,} of them distinct"
        f" ({lineage['total_tokens']:,} with the ancestors' training)."
    )
    return f"{table(header, rows)}\n\n{counts}"


def _data(recipe: Recipe) -> str:
    rows = [
        [
            name,
            source.origin,
            ", ".join(
                f"{stage.name} {100 * stage.mixture[name]:.3g} %"
                for stage in recipe.stages
                if name in stage.mixture
            )
            or "not read",
        ]
        for name, source in recipe.data.items()
    ]
    return table(["source", "what it is", "share of each stage"], rows)


def _overlap(recipe: Recipe) -> str:
    """What `evalsuite.distill.data.decontamination` found, if its list was used."""
    sources = {
        name: Path(each.exclude)
        for name, each in recipe.data.items()
        if isinstance(each, TableSourceConfig) and each.exclude
    }
    without = sorted(set(recipe.data) - set(sources))
    parts = []
    for folder in dict.fromkeys(path.parent for path in sources.values()):
        rows = _overlap_rows(folder / "overlap.csv")
        if rows:
            names = ", ".join(name for name, path in sources.items() if path.parent == folder)
            header = ["benchmark", "documents", "documents that share 13 words with the text"]
            parts.append(
                f"Found in the text of {names} before its overlapping documents were left out:\n\n"
                f"{table(header, rows)}"
            )
    if without:
        parts.append(
            f"Not measured for {', '.join(without)}. `python -m evalsuite.distill.data.decontamination "
            "RECIPE SUITE --out DIR` measures it and writes a list for the key `exclude`."
        )
    return "\n\n".join(parts) or "Overlapping documents were left out; their number is not recorded."


def _overlap_rows(path: Path) -> Sequence[Sequence[str]]:
    try:
        with open(path, newline="") as file:
            return [[row["benchmark"], row["documents"], row["overlapping"]] for row in csv.DictReader(file)]
    except (OSError, KeyError, UnicodeDecodeError, csv.Error):
        return []


def _shown(path: str) -> str:
    """A hub id as it is; of a local path only the name, since cards are published."""
    return path if _is_hub_id(path) else PurePath(path).name or path
