"""What a teacher or student costs, counted on its own layers without weights."""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any


class ModelCost:
    """Parameters and FLOPs of one model.

    FLOPs are per token of a forward pass, averaged over a sequence, and count matrix products, two per
    multiply-add.

    Args:
        model: a causal LM, whose weights are not read; it can be on the meta device.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._config = getattr(model.config, "base", model.config)

    @classmethod
    def of(cls, config: Any) -> "ModelCost":
        """That of a teacher's or student's transformers config, built once."""
        from evalsuite.models.decoder.stats import as_student, build_on_meta

        key = json.dumps(config.to_dict(), sort_keys=True, default=str)
        if key not in _COSTS:
            _COSTS[key] = cls(build_on_meta(as_student(config)))
        return _COSTS[key]

    @property
    def num_hidden_layers(self) -> int:
        """Number of layers."""
        return len(self._layers)

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return int(self._config.hidden_size)

    @property
    def vocab_size(self) -> int:
        """Tokens that the head scores."""
        return int(self._config.vocab_size)

    @property
    def num_attention_heads(self) -> int:
        """Query heads of the teacher."""
        return int(self._config.num_attention_heads)

    @property
    def inner_size(self) -> int:
        """Width of all query heads together."""
        heads = self.num_attention_heads
        head_dim = getattr(self._config, "head_dim", None) or self.hidden_size // heads
        return int(heads * head_dim)

    @property
    def _layers(self) -> Sequence[Any]:
        layers: Sequence[Any] = self._model.model.layers
        return layers

    @cached_property
    def replaced(self) -> list[int]:
        """Layers whose mixers replace softmax attention."""
        from evalsuite.distill.types import softmax_layer_indices

        return sorted(set(range(self.num_hidden_layers)) - softmax_layer_indices(self._model))

    @cached_property
    def num_params(self) -> int:
        """All parameters; a tied head is counted once."""
        return _numel(self._model.parameters())

    @cached_property
    def embedding_params(self) -> int:
        """Parameters of embeddings and head."""
        embeddings = self._model.get_input_embeddings(), self._model.get_output_embeddings()
        return _numel({id(each.weight): each.weight for each in embeddings}.values())

    @cached_property
    def largest_block_params(self) -> int:
        """Parameters of the largest layer."""
        return max(_numel(layer.parameters()) for layer in self._layers)

    def trained_params(self, trainable_set: str) -> int:
        """Parameters in a set (see `trainable.TRAINABLE_SETS`). Raises ConfigError if it is empty."""
        return _numel(self._named(trainable_set).values())

    def shared_params(self, trainable_set: str) -> int:
        """Parameters outside a set that a new student has in common with its teacher."""
        from evalsuite.distill.trainable import mixer_names

        own = {*self._named(trainable_set), *mixer_names(self._model)}
        return _numel(parameter for name, parameter in self._model.named_parameters() if name not in own)

    def _named(self, trainable_set: str) -> dict[str, Any]:
        from evalsuite.distill.trainable import trainable_names

        parameters = dict(self._model.named_parameters())
        return {name: parameters[name] for name in trainable_names(self._model, trainable_set)}

    def forward_flops(self, length: int, *, head: bool = True) -> float:
        """FLOPs of the model, with or without its head, in sequences of `length` tokens."""
        mixers = sum(self.mixer_flops(layer, length) for layer in range(self.num_hidden_layers))
        return mixers + self._mlp_flops + (self._head_flops if head else 0)

    def mixer_flops(self, layer: int, length: int) -> float:
        """FLOPs of the mixer of a layer."""
        mixer = self._layers[layer].self_attn
        if not hasattr(mixer, "flops"):
            # Attention of an architecture that students do not support, over half of the tokens on average.
            return self.mixer_matrix_flops(layer) + 2 * length * self.inner_size
        flops: float = mixer.flops(length)
        return flops

    def mixer_matrix_flops(self, layer: int) -> int:
        """FLOPs of the projections of a layer's mixer."""
        return 2 * _numel(_matrices(self._layers[layer].self_attn))

    def mlp_flops(self, layer: int) -> int:
        """FLOPs of the MLP of a layer."""
        return 2 * _numel(_matrices(self._layers[layer].mlp))

    @cached_property
    def _mlp_flops(self) -> int:
        return sum(self.mlp_flops(layer) for layer in range(self.num_hidden_layers))

    @property
    def _head_flops(self) -> int:
        return 2 * self.hidden_size * self.vocab_size

    def layer_activation_bytes(self, width: int) -> int:
        """Bytes of one layer's activations per token; `width`: bytes of an activation.

        About 12 vectors of the heads, 4 of the residual stream and 2 of the MLP (measured for 32,768 tokens
        in bf16: 28.6 GB in total for SmolLM2-135M; 79.9 GB for Qwen3-0.6B, whose heads are twice as wide as
        the residual stream).
        """
        return width * (12 * self.inner_size + 4 * self.hidden_size + 2 * int(self._config.intermediate_size))


_COSTS: dict[str, ModelCost] = {}


def _matrices(module: Any) -> list[Any]:
    from torch import nn

    return [each.weight for each in module.modules() if isinstance(each, nn.Linear)]


def _numel(parameters: Any) -> int:
    return sum(parameter.numel() for parameter in parameters)
