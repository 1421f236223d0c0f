"""One layer for every recurrent mixer: the mixer itself, its state in vLLM's pages."""

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
from evalsuite.models.mixers import Mixer
from evalsuite.models.vllm_plugin import MIXER_OP
from evalsuite.models.vllm_plugin.sharding import load_share, local_mixer
from evalsuite.models.vllm_plugin.state import PagedSlot, state_views


class MixerLayer(nn.Module, MambaBase):
    """A rank's share of a recurrent mixer.

    Args:
        whole: the mixer of the checkpoint, on the meta device.
        rope: vLLM's rotary embedding, whose table of angles is read; None if the mixer does not rotate.
        page: bytes of a state, the same for all layers of a student.
        prefix: the layer's name in vLLM.
    """

    def __init__(
        self, whole: Mixer, rope: nn.Module | None, page: int, vllm_config: VllmConfig, prefix: str
    ) -> None:
        super().__init__()
        self.ranks = get_tensor_model_parallel_world_size()
        self.mixer = local_mixer(whole, self.ranks).requires_grad_(False).eval()
        self.load = partial(load_share, self.mixer, whole, get_tensor_model_parallel_rank())
        """Takes the checkpoint's tensors of this layer, by their names inside it."""
        if rope is not None and rope.rotary_dim != whole.head_dim:
            raise ConfigError(
                f"{prefix}: a rotary embedding of {rope.rotary_dim} of {whole.head_dim} channels"
            )
        self.rope = rope
        self.page = page
        self.dtype: torch.dtype = vllm_config.model_config.dtype
        self.prefix = prefix
        self.kv_cache: tuple[Tensor, ...] = (torch.tensor([]),)
        layers = vllm_config.compilation_config.static_forward_context
        if prefix in layers:
            raise ValueError(f"two layers of the name {prefix}")
        layers[prefix] = self

    @property
    def mamba_type(self) -> MambaAttentionBackendEnum:
        return MambaAttentionBackendEnum.CUSTOM

    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        return ((self.page,),)

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        return (torch.int8,)

    def forward(self, positions: Tensor, hidden_states: Tensor) -> Tensor:
        """Mix tokens: [tokens, hidden] → [tokens, hidden]."""
        output = torch.empty_like(hidden_states)
        getattr(torch.ops.vllm, MIXER_OP)(positions, hidden_states, output, self.prefix)
        return tensor_model_parallel_all_reduce(output) if self.ranks > 1 else output

    def mix(self, positions: Tensor, x: Tensor, output: Tensor, metadata: Any) -> None:
        """Write this rank's part of the mixture of x [tokens, hidden] into `output`.

        Tokens lie as vLLM orders them: first one token each of the sequences that are being written, then
        the packed pieces of prompts, then padding.
        """
        if metadata is None:
            # vLLM measures memory before it makes pages; one long prompt takes as much as any batch.
            output.copy_(self._run(x.unsqueeze(0), positions.unsqueeze(0), None, None).squeeze(0))
            return
        states = state_views(self.kv_cache[0], self.mixer, self.dtype)
        if metadata.num_decodes and metadata.num_prefills and x.is_cuda:
            # On a GPU such a step is bound by the number of kernels that it launches: single tokens go with
            # the prompts, as sequences of one. (On a CPU each of them would cost a whole chunk.)
            done = metadata.num_decodes + metadata.num_prefill_tokens
            slot = PagedSlot(states, metadata.rows, metadata.started)
            output[:done] = self._run(
                x[:done].unsqueeze(0), positions[:done].unsqueeze(0), slot, metadata.ends
            )[0]
            output[done:] = 0
            return
        done = 0
        if metadata.num_decodes:
            # In a full CUDA graph there are more rows than sequences; vLLM points the rest at an unused slot.
            # Nothing here may wait for the device: shapes are known, and slots are only indices.
            rows = metadata.state_indices_tensor_d[:, 0].long()
            done = rows.shape[0]
            slot = PagedSlot(states, rows)
            mixed = self._run(x[:done].unsqueeze(1), positions[:done].unsqueeze(1), slot, None)
            output[:done] = mixed.squeeze(1)
        if metadata.num_prefills:
            piece = slice(done, done + metadata.num_prefill_tokens)
            slot = PagedSlot(states, metadata.state_indices_tensor_p.long(), metadata.has_initial_states_p)
            mixed = self._run(x[piece].unsqueeze(0), positions[piece].unsqueeze(0), slot, metadata.bounds)
            output[piece] = mixed[0]
            done = piece.stop
        output[done:] = 0

    def _run(self, x: Tensor, positions: Tensor, slot: PagedSlot | None, bounds: Tensor | None) -> Tensor:
        """Call the mixer as a student's decoder does: x [B, T, hidden], positions [B, T]."""
        angles = None
        if self.rope is not None:
            table: Tensor = self.rope.get_buffer("cos_sin_cache")
            halves = table[positions].chunk(2, -1)
            angles = tuple(torch.cat([half, half], -1) for half in halves)
        cache = None if slot is None else SimpleNamespace(layers={self.mixer.layer_idx: slot})
        mixed: Tensor = self.mixer(x, position_embeddings=angles, past_key_values=cache, cu_seqlens=bounds)[0]
        return mixed


class StateBackend(AttentionBackend):
    """Tells vLLM how a batch's slots are described to a `MixerLayer`."""

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
    """Which tokens belong to whom, and where their states lie."""

    fresh: Tensor | None = None
    """Rows among those that write one token whose sequence begins with it, on the CPU."""

    @cached_property
    def bounds(self) -> Tensor:
        """Where the pieces of prompts begin and end: one tensor for all layers, because fla waits for the
        device once for each that it has not seen."""
        assert self.query_start_loc_p is not None
        return self.query_start_loc_p.long()

    @cached_property
    def ends(self) -> Tensor:
        """`bounds` of a batch in which those who write one token come first, as sequences of one."""
        singles = torch.arange(self.num_decodes, device=self.bounds.device)
        return torch.cat([singles, self.bounds + self.num_decodes])

    @cached_property
    def rows(self) -> Tensor:
        """Slots of the whole batch."""
        assert self.state_indices_tensor_d is not None
        assert self.state_indices_tensor_p is not None
        return torch.cat(
            [self.state_indices_tensor_d[: self.num_decodes, 0], self.state_indices_tensor_p]
        ).long()

    @cached_property
    def started(self) -> Tensor:
        """Which sequences of the whole batch have a state."""
        assert self.has_initial_states_p is not None
        singles = self.has_initial_states_p.new_ones(self.num_decodes)
        return torch.cat([singles, self.has_initial_states_p])


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
        """Describe a batch. A prompt of one token that comes while all others write one is a step as theirs.

        vLLM replays the CUDA graph of such a step whoever is in it, and would leave in place which slots the
        step before it used if it saw a prompt there. The slot of such a prompt is cleared instead.
        """
        fresh = first_tokens(common_attn_metadata)
        if fresh is not None:
            prefilling = common_attn_metadata.is_prefilling & ~fresh
            common_attn_metadata = common_attn_metadata.replace(is_prefilling=prefilling)
        metadata = super().build(common_prefix_len, common_attn_metadata, fast_build, **rest)
        if fresh is not None:
            metadata = replace(metadata, fresh=fresh.nonzero()[:, 0])
            self._clear(metadata)
        return metadata

    def update_block_table(
        self, metadata: StateMetadata, blk_table: Tensor, slot_mapping: Tensor
    ) -> StateMetadata:
        """The same batch in the slots of other layers."""
        updated = super().update_block_table(metadata, blk_table, slot_mapping)
        if metadata.num_prefills:
            updated.__dict__["bounds"] = metadata.bounds
            updated.__dict__["ends"] = metadata.ends
        self._clear(updated)
        return updated

    def _clear(self, metadata: StateMetadata) -> None:
        if metadata.fresh is None:
            return
        indices = metadata.state_indices_tensor_d
        assert indices is not None
        slots = indices[metadata.fresh.to(indices.device), 0].long()
        layers = self.vllm_config.compilation_config.static_forward_context
        for name in self.layer_names:
            layers[name].kv_cache[0][slots] = 0


def first_tokens(batch: CommonAttentionMetadata) -> Tensor | None:
    """Which sequences begin in a batch of one token each, bool on the CPU; None if there are none."""
    if batch.max_query_len != 1 or batch.is_prefilling is None or batch.seq_lens_cpu_upper_bound is None:
        return None
    lengths = batch.query_start_loc_cpu.diff()
    fresh = batch.is_prefilling & (batch.seq_lens_cpu_upper_bound == 1) & (lengths == 1)
    return fresh if fresh.any() else None


@eager_break_during_capture
def _mix(positions: Tensor, hidden_states: Tensor, output: Tensor, layer_name: str) -> None:
    context = get_forward_context()
    layer = context.no_compile_layers[layer_name]
    metadata = context.attn_metadata
    layer.mix(positions, hidden_states, output, metadata[layer_name] if metadata is not None else None)


direct_register_custom_op(op_name=MIXER_OP, op_func=_mix, mutates_args=["output"])
