"""The one model under which vLLM serves every student. Imported by vLLM only."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.mamba.mamba_utils import get_temporal_copy_spec
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.models.interfaces import HasInnerState, IsHybrid
from vllm.model_executor.models.llama import LlamaDecoderLayer, LlamaForCausalLM
from vllm.model_executor.models.utils import extract_layer_index

from evalsuite.models.mixers import Mixer, geometry_of
from evalsuite.models.vllm_plugin.mixer_layer import MixerLayer
from evalsuite.models.vllm_plugin.products import sum_in_pieces
from evalsuite.models.vllm_plugin.skeleton import largest_state, skeleton
from evalsuite.models.vllm_plugin.softmax_layer import SoftmaxLayer


class StudentForCausalLM(LlamaForCausalLM, HasInnerState, IsHybrid):
    """A student in vLLM: vLLM's Llama, whose `self_attn` is chosen per layer."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        config = vllm_config.model_config.hf_config
        layers = skeleton(config)
        ranks = vllm_config.parallel_config.tensor_parallel_size
        page = largest_state(layers, ranks, vllm_config.model_config.dtype)
        make = partial(_attention, vllm_config, layers, page)

        def layer_type(vllm_config: VllmConfig, prefix: str) -> nn.Module:
            return LlamaDecoderLayer(vllm_config, prefix, config=config.base, attn_layer_type=make)

        super().__init__(vllm_config=vllm_config, prefix=prefix, layer_type=layer_type)
        sum_in_pieces(self, vllm_config.model_config.dtype)

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: VllmConfig) -> tuple[tuple[int, ...], ...]:
        ranks = vllm_config.parallel_config.tensor_parallel_size
        layers = skeleton(vllm_config.model_config.hf_config)
        return ((largest_state(layers, ranks, vllm_config.model_config.dtype),),)

    @classmethod
    def get_mamba_state_dtype_from_config(cls, vllm_config: VllmConfig) -> tuple[torch.dtype, ...]:
        return (torch.int8,)

    @classmethod
    def get_mamba_state_copy_func(cls) -> tuple[Any, ...]:
        return (get_temporal_copy_spec,)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load a student's tensors as its folder names them; recurrent layers take theirs whole.

        Raises:
            CheckpointError: a layer's tensors are missing or of another shape.
        """
        recurrent = {
            f"{name}.": module for name, module in self.named_modules() if isinstance(module, MixerLayer)
        }
        found: dict[str, dict[str, Tensor]] = defaultdict(dict)

        def others() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in weights:
                owner = next((prefix for prefix in recurrent if name.startswith(prefix)), None)
                if owner is None:
                    yield name, tensor
                else:
                    tensors = found[owner]
                    tensors[name.removeprefix(owner)] = tensor
                    # A layer is loaded as soon as it is whole: the checkpoint must not lie in memory twice.
                    if tensors.keys() == recurrent[owner].mixer.state_dict().keys():
                        recurrent.pop(owner).load(found.pop(owner))

        names = {
            f"{prefix}mixer.{name}" for prefix in recurrent for name in recurrent[prefix].mixer.state_dict()
        }
        loaded: set[str] = super().load_weights(others())
        for prefix, layer in recurrent.items():
            layer.load(found[prefix])
        return loaded | names


def _attention(
    vllm_config: VllmConfig, layers: list[nn.Module], page: int, *, prefix: str, **_: Any
) -> nn.Module:
    """The module for `self_attn` of the layer that `prefix` names."""
    number = extract_layer_index(prefix)
    original = layers[number]
    base = vllm_config.model_config.hf_config.base
    rope = get_rope(
        original.head_dim,
        max_position=base.max_position_embeddings,
        rope_parameters=base.rope_parameters,
    )
    if isinstance(original, Mixer):
        rotates = rope if original.options.rotary else None
        return MixerLayer(original, rotates, page, vllm_config, prefix)
    geometry = geometry_of(original, base.rms_norm_eps, number)
    return SoftmaxLayer(geometry, rope, original.window, vllm_config.cache_config, prefix)
