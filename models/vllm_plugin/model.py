"""The vLLM model that serves all students. Imported only inside vLLM."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.mamba.mamba_utils import get_temporal_copy_spec
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.models.interfaces import HasInnerState, IsHybrid
from vllm.model_executor.models.llama import LlamaDecoderLayer, LlamaForCausalLM
from vllm.model_executor.models.utils import extract_layer_index

from evalsuite.models.vllm_plugin.cpu_fp32_linear import use_blocked_fp32_linear
from evalsuite.models.vllm_plugin.meta_model import (
    build_meta_mixers,
    max_state_bytes,
    share_pages,
    states_per_page,
)
from evalsuite.models.vllm_plugin.mixer_layer import MixerLayer, StatePages
from evalsuite.models.vllm_plugin.softmax_layer import SoftmaxLayer


class StudentForCausalLM(LlamaForCausalLM, HasInnerState, IsHybrid):
    """A student in vLLM: vLLM's Llama with `self_attn` chosen per layer."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        config = vllm_config.model_config.hf_config
        make = _Layers(vllm_config).attention

        def layer_type(vllm_config: VllmConfig, prefix: str) -> nn.Module:
            return LlamaDecoderLayer(vllm_config, prefix, config=config.base, attn_layer_type=make)

        super().__init__(vllm_config=vllm_config, prefix=prefix, layer_type=layer_type)
        use_blocked_fp32_linear(self, vllm_config.model_config.dtype)

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: VllmConfig) -> tuple[tuple[int, ...], ...]:
        return ((_Layers(vllm_config).page_bytes,),)

    @classmethod
    def get_mamba_state_dtype_from_config(cls, vllm_config: VllmConfig) -> tuple[torch.dtype, ...]:
        return (torch.int8,)

    @classmethod
    def get_mamba_state_copy_func(cls) -> tuple[Any, ...]:
        return (get_temporal_copy_spec,)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load a student's tensors; each recurrent layer loads all of its tensors at once.

        Raises:
            CheckpointError: a layer's tensors are missing or of another shape.
        """
        recurrent = {
            f"{name}.": module for name, module in self.named_modules() if isinstance(module, MixerLayer)
        }
        pending: dict[str, dict[str, Tensor]] = defaultdict(dict)

        def other_weights() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in weights:
                owner = next((prefix for prefix in recurrent if name.startswith(prefix)), None)
                if owner is None:
                    yield name, tensor
                else:
                    tensors = pending[owner]
                    tensors[name.removeprefix(owner)] = tensor
                    # Layers load as soon as they are complete: memory must not hold the checkpoint twice.
                    if tensors.keys() == recurrent[owner].mixer.state_dict().keys():
                        recurrent.pop(owner).load(pending.pop(owner))

        names = {
            f"{prefix}mixer.{name}" for prefix in recurrent for name in recurrent[prefix].mixer.state_dict()
        }
        loaded: set[str] = super().load_weights(other_weights())
        for prefix, layer in recurrent.items():
            layer.load(pending[prefix])
        return loaded | names


class _Layers:
    """The student's layers on the meta device, and the pages of their states."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        self.vllm_config = vllm_config
        self.mixers = build_meta_mixers(vllm_config.model_config.hf_config)
        tp_size = vllm_config.parallel_config.tensor_parallel_size
        self.state_bytes = max_state_bytes(self.mixers, tp_size, vllm_config.model_config.dtype)
        caching = bool(vllm_config.cache_config.enable_prefix_caching)
        self.places = share_pages(self.mixers, self.state_bytes, prefix_caching=caching)
        self.page_bytes = self.state_bytes * states_per_page(self.places)
        self.pages: dict[int, StatePages] = {}

    def attention(self, *, prefix: str, **_: Any) -> nn.Module:
        """Make the `self_attn` module of the layer named `prefix`."""
        layer = extract_layer_index(prefix)
        original = self.mixers[layer]
        base = self.vllm_config.model_config.hf_config.base
        rope = get_rope(
            original.head_dim,
            max_position=base.max_position_embeddings,
            rope_parameters=base.rope_parameters,
        )
        if original.served_as == "recurrence":
            teachers = original.options.rotary and not original.options.rotary_base
            mixer_rope = rope if teachers else None
            page, place = self.places[layer]
            if page not in self.pages:
                self.pages[page] = StatePages(self.page_bytes, self.vllm_config, f"{prefix}.pages")
            return MixerLayer(
                original,
                mixer_rope,
                self.pages[page],
                place * self.state_bytes,
                self.vllm_config,
                prefix,
            )
        return SoftmaxLayer(
            original.attention_shape,
            rope,
            original.span.window,
            self.vllm_config.cache_config,
            prefix,
        )
