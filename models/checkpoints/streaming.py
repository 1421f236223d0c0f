"""Weights of teachers and students, read or converted one tensor or layer at a time.

For processes that hold a part of a model: none of them ever has all weights in memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationConfig

from evalsuite.foundation import CheckpointError
from evalsuite.models.checkpoints.load import CheckpointInfo
from evalsuite.models.checkpoints.safetensors_index import stored_tensors
from evalsuite.models.decoder.build import copy_generation_config, student_config
from evalsuite.models.decoder.config import decoder_config
from evalsuite.models.decoder.deferred_init import DrawnWeights
from evalsuite.models.decoder.model import StudentForCausalLM


class Weights(Protocol):
    """A model on the meta device, and its weights."""

    model: Any

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows of a parameter, on the CPU, in fp32."""


class StoredWeights:
    """A checkpoint: rows are read from its safetensors files.

    Raises:
        CheckpointError: a GGUF file, or files that lack parameters of the model.
    """

    def __init__(self, info: CheckpointInfo) -> None:
        if info.folder is None or not (info.folder / "config.json").is_file():
            raise CheckpointError(f"{info.path}: sharded training reads safetensors, not GGUF; {_CONVERT}")
        self._path = info.path
        self.model = DrawnWeights(
            lambda: AutoModelForCausalLM.from_config(decoder_config(info.config), dtype=torch.float32),
            seed=None,
        ).model.eval()
        if (info.folder / "generation_config.json").is_file():
            self.model.generation_config = GenerationConfig.from_pretrained(info.folder)
        self._stored = {tensor.name: tensor for tensor in stored_tensors(info.folder)}
        for name, parameter in self.model.named_parameters():
            stored = self._stored.get(name)
            if stored is None or stored.shape != tuple(parameter.shape):
                raise CheckpointError(
                    f"{info.path}: weight '{name}' is missing or of another shape; sharded training reads "
                    f"files with the model's own names; {_CONVERT}"
                )

    def rows(self, name: str, start: int, stop: int | None) -> Tensor:
        with safe_open(self._stored[name].file, framework="pt") as file:
            rows: Tensor = file.get_slice(name)[start:stop]
        return rows.float()


_CONVERT = "convert it with transformers' save_pretrained, or --set sharding=none"


class NewStudentWeights:
    """A new student: the teacher's weights by name, and one mixer at a time converted from its attention.

    Args: see `build_student`, whose weights these are, bit for bit.
    """

    def __init__(
        self,
        teacher: StoredWeights,
        mixers: list[str],
        *,
        options: dict[str, dict[str, Any]],
        init: str,
        seed: int,
        softmax_heads: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        config = student_config(teacher.model.config, mixers, options, init, softmax_heads)
        self._drawn = DrawnWeights(lambda: StudentForCausalLM.with_new_mixers(config), seed=seed)
        self.model = self._drawn.model
        self.model.config.dtype = torch.float32
        copy_generation_config(self.model, teacher.model)
        self._teacher, self._init = teacher, init
        self._converted: tuple[int, dict[str, Tensor]] | None = None

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Parameters of a layer are best read one after the other."""
        if ".self_attn." not in name:
            return self._teacher.rows(name, start, stop)
        layer = int(name.split(".")[2])
        if self._converted is None or self._converted[0] != layer:
            self._converted = layer, self._convert(layer)
        return self._converted[1][name][start:stop]

    @torch.no_grad()
    def _convert(self, layer: int) -> dict[str, Tensor]:
        """Parameters of a layer's mixer, by name."""
        prefix = f"model.layers.{layer}.self_attn"
        mixer, attention = (model.get_submodule(prefix) for model in (self.model, self._teacher.model))
        mine = {name: self._drawn[f"{prefix}.{name}"] for name, _ in mixer.named_parameters()}
        theirs = {
            name: self._teacher.rows(f"{prefix}.{name}", 0, None) for name, _ in attention.named_parameters()
        }
        with filled(mixer, mine), filled(attention, theirs):
            mixer.copy_from_teacher(attention, self._init)
        return {f"{prefix}.{name}": tensor for name, tensor in mine.items()}


@contextmanager
def filled(module: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Within this context, parameters of `module` are the given tensors, which what is written changes."""
    places = [(module.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in tensors]
    before = [owner._parameters[leaf] for owner, leaf in places]
    try:
        for (owner, leaf), tensor in zip(places, tensors.values(), strict=True):
            owner._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
        yield
    finally:
        for (owner, leaf), parameter in zip(places, before, strict=True):
            owner._parameters[leaf] = parameter
