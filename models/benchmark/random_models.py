"""Models of a published shape with random weights: cost depends on shapes alone.

Students are written `NAME[:preset=P][+softmax/N or +softmax@LAYERS]`: a mixer, its preset, and which layers
are softmax, every N-th or those listed (`kda:preset=gendistill+softmax@0,6,13`). `softmax` is the teacher.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from evalsuite.foundation import ConfigError, content_hash, nearest, read_json
from evalsuite.models.checkpoints.load import Checkpoint
from evalsuite.models.decoder import StudentConfig, StudentForCausalLM
from evalsuite.models.decoder.build import to_decoder
from evalsuite.models.mixers import MIXERS

SHAPES = Path(__file__).parent / "shapes"
"""Configs of the papers' sizes, without weights or tokenizers."""
TEACHER = "softmax"
_STUDENT = re.compile(
    r"(?P<mixer>[^:+]+)(:preset=(?P<preset>[^:+]+))?"
    r"(\+softmax(/(?P<period>[1-9][0-9]*)|@(?P<layers>[0-9]+(,[0-9]+)*)))?"
)
FORM = "NAME[:preset=P][+softmax/N or +softmax@0,6,13]"
"""How a student is written."""


@dataclass(frozen=True, slots=True)
class RandomModel:
    """A model to build: its config and names."""

    label: str
    config: PreTrainedConfig
    weights_id: str
    teacher: str | None
    """weights_id of the teacher of the same shape; None for the teacher."""


def shape_names() -> list[str]:
    """Names of the shipped shapes."""
    return sorted(path.stem for path in SHAPES.glob("*.json"))


def read_shape(like: str) -> tuple[str, PreTrainedConfig]:
    """Name and config of a shipped shape, of a config file, or of a folder with one.

    Raises:
        ConfigError: no such shape or file, or a config that transformers does not know.
    """
    names = {name.lower(): name for name in shape_names()}
    path = Path(like)
    if like.lower() in names:
        name = names[like.lower()]
        path = SHAPES / f"{name}.json"
    elif path.is_dir() or path.suffix == ".json":
        path = path / "config.json" if path.is_dir() else path
        name = path.parent.name if path.name == "config.json" else path.stem
    else:
        raise ConfigError(f"--like {like}: no shape{nearest(like, names.values())}, and no config.json there")
    if not path.is_file():
        raise ConfigError(f"--like {like}: {path} does not exist")
    values: dict[str, Any] = dict(read_json(path))
    kind = values.pop("model_type", None)
    try:
        return name, AutoConfig.for_model(kind, **values)
    except ValueError as error:
        raise ConfigError(f"{path}: 'model_type' = {kind!r}: {str(error).splitlines()[0]}") from error


def random_models(like: str, mixers: list[str]) -> list[RandomModel]:
    """The teacher of a shape and its students, without weights.

    Args:
        like: see `read_shape`.
        mixers: see the module; the teacher is always the first model.

    Raises:
        ConfigError: unknown shape or mixer.
    """
    name, config = read_shape(like)
    teacher = RandomModel(f"{name}, teacher", config, _identity(config), None)
    found = [teacher]
    for text in dict.fromkeys(mixers):
        if text != TEACHER:
            student = StudentConfig(config.to_dict(), *parse_student(text, config.num_hidden_layers))
            found.append(RandomModel(f"{name}, {text}", student, _identity(student), teacher.weights_id))
    return found


def parse_student(text: str, layers: int) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """One mixer per layer, and the options of mixers, from the form of the module.

    Raises:
        ConfigError: another form, an unknown mixer, or a layer that there is not. `StudentConfig` refuses an
            unknown preset.
    """
    student = _STUDENT.fullmatch(text)
    if student is None:
        raise ConfigError(f"--mixer {text}: write {FORM}")
    name = student["mixer"]
    if name not in MIXERS:
        raise ConfigError(f"--mixer {text}: no mixer{nearest(name, MIXERS)}; see `evalsuite show mixers`")
    kept = [int(layer) for layer in (student["layers"] or "").split(",") if layer]
    if high := [layer for layer in kept if layer >= layers]:
        raise ConfigError(f"--mixer {text}: there is no layer {high[0]}; layers are 0 to {layers - 1}")
    if student["period"]:
        kept = [layer for layer in range(layers) if (layer + 1) % int(student["period"]) == 0]
    options = {name: {"preset": student["preset"]}} if student["preset"] else {}
    return [TEACHER if layer in kept else name for layer in range(layers)], options


def build(model: RandomModel, *, device: str, dtype: str) -> Checkpoint:
    """Make the weights, on the device."""
    wanted: torch.dtype = getattr(torch, dtype)
    where = torch.device(device)
    with torch.random.fork_rng([where] if where.type == "cuda" else []), where:
        torch.manual_seed(0)
        made: PreTrainedModel
        if isinstance(model.config, StudentConfig):
            made = StudentForCausalLM(model.config)
            # As in `build_student`: rotary frequencies, a buffer, stay in float32.
            for parameter in made.parameters():
                parameter.data = parameter.data.to(wanted)
        else:
            made = to_decoder(AutoModelForCausalLM.from_config(model.config, dtype=wanted))
    made.config.dtype = wanted
    lineage = {} if model.teacher is None else {"teacher": {"weights_id": model.teacher}}
    return Checkpoint(model.label, model.label, made.eval(), None, model.weights_id, lineage)


def _identity(config: PreTrainedConfig) -> str:
    """Stands for weights_id: random weights are named by their config."""
    values = json.loads(config.to_json_string(use_diff=False))
    values.pop("transformers_version", None)
    return content_hash(["random weights", values])[:16]
