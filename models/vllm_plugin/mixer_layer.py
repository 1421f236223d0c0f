"""vLLM layer for all recurrent mixers: the mixer itself, with its state in vLLM's pages."""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from vllm.compilation.breakable_cudagraph import eager_break_during_capture
from vllm.config import VllmConfig
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_reduce,
)
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.utils.torch_utils import direct_register_custom_op
from vllm.v1.attention.backend import AttentionBackend, CommonAttentionMetadata
from vllm.v1.attention.backends.mamba_attn import (
    BaseMambaAttentionMetadata,
    BaseMambaAttentionMetadataBuilder,
)
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers import RecurrentMixer
from evalsuite.models.mixers.layers import rotary_angles
from evalsuite.models.vllm_plugin import MIXER_OP
from evalsuite.models.vllm_plugin.sharding import load_sharded_weights, local_mixer
from evalsuite.models.vllm_plugin.state import PagedLayerCache, state_views


class StatePages(MambaBase):
    """The pages of one or more recurrent layers: a layer of vLLM's cache, which has one page for a sequence.

    Args:
        page_bytes: bytes of a page, the same for all of a student.
        vllm_config: vLLM's configuration.
        prefix: its name in vLLM, with a layer's index.
    """

    def __init__(self, page_bytes: int, vllm_config: VllmConfig, prefix: str) -> None:
        self.page_bytes = page_bytes
        self.prefix = prefix
        self.kv_cache: tuple[Tensor, ...] = (torch.tensor([]),)
        _add_layer(vllm_config, prefix, self)

    @property
    def mamba_type(self) -> MambaAttentionBackendEnum:
        return MambaAttentionBackendEnum.CUSTOM

    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        return ((self.page_bytes,),)

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        return (torch.int8,)


class MixerLayer(nn.Module):
    """One rank's shard of a recurrent mixer.

    Args:
        mixer: the checkpoint's mixer, on the meta device.
        rope: vLLM's rotary embedding, whose table of angles is used; None for mixers without the teacher's.
        pages: the pages that hold its state.
        offset: bytes of a page before its state.
        vllm_config: vLLM's configuration.
        prefix: the layer's name in vLLM.
    """

    def __init__(
        self,
        mixer: RecurrentMixer,
        rope: nn.Module | None,
        pages: StatePages,
        offset: int,
        vllm_config: VllmConfig,
        prefix: str,
    ) -> None:
        super().__init__()
        self.tp_size = get_tensor_model_parallel_world_size()
        self.mixer = local_mixer(mixer, self.tp_size).requires_grad_(False).eval()
        self.load = partial(load_sharded_weights, self.mixer, mixer, get_tensor_model_parallel_rank())
        """Loads the checkpoint's tensors of this layer, given by name inside the mixer."""
        if rope is not None and rope.rotary_dim != mixer.head_k_dim:
            raise ConfigError(
                f"{prefix}: a rotary embedding of {rope.rotary_dim} of {mixer.head_k_dim} channels"
            )
        self.rope = rope
        self.pages = pages
        self.offset = offset
        self.dtype: torch.dtype = vllm_config.model_config.dtype
        self.prefix = prefix
        _add_layer(vllm_config, prefix, self)

    def forward(self, positions: Tensor, hidden_states: Tensor) -> Tensor:
        """Mix tokens: [tokens, hidden] → [tokens, hidden]."""
        output = torch.empty_like(hidden_states)
        getattr(torch.ops.vllm, MIXER_OP)(positions, hidden_states, output, self.prefix)
        return tensor_model_parallel_all_reduce(output) if self.tp_size > 1 else output

    def mix(self, positions: Tensor, x: Tensor, output: Tensor, metadata: Any) -> None:
        """Write this rank's partial output for x [tokens, hidden] into `output`.

        Tokens are in vLLM's order: one token per decoding sequence, then packed prefill chunks, then padding.
        """
        if metadata is None:
            # Memory profiling runs before pages exist; one long prompt needs as much memory as any batch.
            output.copy_(self._run(x.unsqueeze(0), positions.unsqueeze(0), None, None).squeeze(0))
            return
        states = state_views(self.pages.kv_cache[0][:, self.offset :], self.mixer, self.dtype)
        if metadata.num_decodes and metadata.num_prefills and x.is_cuda:
            # On a GPU a mixed step is bound by kernel launches, so decoding sequences are packed with the
            # prefills as sequences of one token. (On a CPU each of them would cost a full chunk.)
            done = metadata.num_decodes + metadata.num_prefill_tokens
            cache = PagedLayerCache(states, metadata.state_indices, metadata.has_initial_state)
            output[:done] = self._run(
                x[:done].unsqueeze(0), positions[:done].unsqueeze(0), cache, metadata.cu_seqlens_with_decodes
            )[0]
            output[done:] = 0
            return
        done = 0
        if metadata.num_decodes:
            # A full CUDA graph has more rows than sequences; vLLM points the others at an unused slot. This
            # branch must not synchronise with the device: shapes are static, and slots are only indices.
            state_indices = metadata.state_indices_tensor_d[:, 0].long()
            done = state_indices.shape[0]
            cache = PagedLayerCache(states, state_indices)
            mixed = self._run(x[:done].unsqueeze(1), positions[:done].unsqueeze(1), cache, None)
            output[:done] = mixed.squeeze(1)
        if metadata.num_prefills:
            prefill = slice(done, done + metadata.num_prefill_tokens)
            state_indices = metadata.state_indices_tensor_p.long()
            cache = PagedLayerCache(states, state_indices, metadata.has_initial_states_p)
            mixed = self._run(
                x[prefill].unsqueeze(0), positions[prefill].unsqueeze(0), cache, metadata.cu_seqlens
            )
            output[prefill] = mixed[0]
            done = prefill.stop
        output[done:] = 0

    def _run(
        self, x: Tensor, positions: Tensor, cache: PagedLayerCache | None, cu_seqlens: Tensor | None
    ) -> Tensor:
        """Call the mixer as a student's decoder does: x [B, T, hidden], positions [B, T]."""
        position_embeddings: tuple[Tensor, ...] | None = None
        if base := self.mixer.options.rotary_base:
            position_embeddings = rotary_angles(positions, self.mixer.head_k_dim, base, x.dtype)
        elif self.rope is not None:
            table: Tensor = self.rope.get_buffer("cos_sin_cache")
            halves = table[positions].chunk(2, -1)
            position_embeddings = tuple(torch.cat([half, half], -1) for half in halves)
        caches = None if cache is None else SimpleNamespace(layers={self.mixer.layer_idx: cache})
        return self.mixer(
            x, position_embeddings=position_embeddings, past_key_values=caches, cu_seqlens=cu_seqlens
        )[0]


def _add_layer(vllm_config: VllmConfig, prefix: str, layer: Any) -> None:
    """Let vLLM find a layer by its name."""
    layers = vllm_config.compilation_config.static_forward_context
    if prefix in layers:
        raise ValueError(f"two layers are named {prefix}")
    layers[prefix] = layer


class StateBackend(AttentionBackend):
    """Attention backend that builds the `StateMetadata` of a batch for `StatePages`."""

    @staticmethod
    def get_name() -> str:
        return "EVALSUITE_STATE"

    @staticmethod
    def get_builder_cls() -> type["StateMetadataBuilder"]:
        return StateMetadataBuilder

    @classmethod
    def is_ssm(cls) -> bool:
        return True


@dataclass
class StateMetadata(BaseMambaAttentionMetadata):
    """Token ranges and state slots of the sequences of a batch."""

    new_sequences: Tensor | None = None
    """Indices of decoding rows whose sequence starts with that token, on the CPU."""

    @cached_property
    def cu_seqlens(self) -> Tensor:
        """Bounds of the prefill chunks: one tensor for all layers, because fla synchronises with the device
        once per new tensor."""
        assert self.query_start_loc_p is not None
        return self.query_start_loc_p.long()

    @cached_property
    def cu_seqlens_with_decodes(self) -> Tensor:
        """`cu_seqlens` with the decoding sequences in front, as sequences of one token."""
        decodes = torch.arange(self.num_decodes, device=self.cu_seqlens.device)
        return torch.cat([decodes, self.cu_seqlens + self.num_decodes])

    @cached_property
    def state_indices(self) -> Tensor:
        """State slots of all sequences, decoding ones first."""
        assert self.state_indices_tensor_d is not None
        assert self.state_indices_tensor_p is not None
        return torch.cat(
            [self.state_indices_tensor_d[: self.num_decodes, 0], self.state_indices_tensor_p]
        ).long()

    @cached_property
    def has_initial_state(self) -> Tensor:
        """Whether each sequence already has a state, decoding ones first: bool."""
        assert self.has_initial_states_p is not None
        decodes = self.has_initial_states_p.new_ones(self.num_decodes)
        return torch.cat([decodes, self.has_initial_states_p])


class StateMetadataBuilder(BaseMambaAttentionMetadataBuilder[StateMetadata]):
    metadata_cls = StateMetadata
    needs_causal_conv1d_metadata = False

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
        **rest: Any,
    ) -> StateMetadata:
        """Build a batch's metadata, treating new one-token prompts as decodes if all other rows are.

        vLLM replays the decode CUDA graph for such a step in any case; if the metadata contained a prefill,
        the slot indices of the previous step would stay in place. These prompts' slots are cleared instead.
        """
        is_new = single_token_prompts(common_attn_metadata)
        if is_new is not None:
            prefilling = common_attn_metadata.is_prefilling & ~is_new
            common_attn_metadata = common_attn_metadata.replace(is_prefilling=prefilling)
        metadata = super().build(common_prefix_len, common_attn_metadata, fast_build, **rest)
        if is_new is not None:
            metadata = replace(metadata, new_sequences=is_new.nonzero()[:, 0])
            self._clear_slots(metadata)
        return metadata

    def update_block_table(
        self, metadata: StateMetadata, blk_table: Tensor, slot_mapping: Tensor
    ) -> StateMetadata:
        """Return the metadata of the same batch for the slots of other layers."""
        updated = super().update_block_table(metadata, blk_table, slot_mapping)
        if metadata.num_prefills:
            updated.__dict__["cu_seqlens"] = metadata.cu_seqlens
            updated.__dict__["cu_seqlens_with_decodes"] = metadata.cu_seqlens_with_decodes
        self._clear_slots(updated)
        return updated

    def _clear_slots(self, metadata: StateMetadata) -> None:
        if metadata.new_sequences is None:
            return
        indices = metadata.state_indices_tensor_d
        assert indices is not None
        slots = indices[metadata.new_sequences.to(indices.device), 0].long()
        layers = self.vllm_config.compilation_config.static_forward_context
        for name in self.layer_names:
            layers[name].kv_cache[0][slots] = 0


def single_token_prompts(batch: CommonAttentionMetadata) -> Tensor | None:
    """Find the new prompts in a batch of single tokens: bool on the CPU, or None if there are none."""
    if batch.max_query_len != 1 or batch.is_prefilling is None or batch.seq_lens_cpu_upper_bound is None:
        return None
    lengths = batch.query_start_loc_cpu.diff()
    is_new = batch.is_prefilling & (batch.seq_lens_cpu_upper_bound == 1) & (lengths == 1)
    return is_new if is_new.any() else None


@eager_break_during_capture
def _mix(positions: Tensor, hidden_states: Tensor, output: Tensor, layer_name: str) -> None:
    context = get_forward_context()
    layer = context.no_compile_layers[layer_name]
    metadata = context.attn_metadata
    layer.mix(
        positions, hidden_states, output, metadata[layer.pages.prefix] if metadata is not None else None
    )


direct_register_custom_op(op_name=MIXER_OP, op_func=_mix, mutates_args=["output"])
