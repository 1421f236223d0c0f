"""Softmax and sliding-window layers on vLLM's own attention, for every teacher that a student can have."""

from torch import Tensor, nn
from vllm.config import CacheConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import QKVParallelLinear, RowParallelLinear

from evalsuite.models.mixers import Geometry


class SoftmaxLayer(nn.Module):
    """Attention of a Llama, Mistral, Qwen2 or Qwen3 teacher, its biases and QK-norm read from its geometry.

    Args:
        rope: vLLM's rotary embedding.
        window: tokens that a query sees, itself included; None for all.
    """

    def __init__(
        self,
        geometry: Geometry,
        rope: nn.Module,
        window: int | None,
        cache_config: CacheConfig,
        prefix: str,
    ) -> None:
        super().__init__()
        ranks = get_tensor_model_parallel_world_size()
        self.head_dim = geometry.head_dim
        heads, kv_heads = geometry.heads // ranks, max(1, geometry.kv_heads // ranks)
        self.sizes = [heads * self.head_dim, kv_heads * self.head_dim, kv_heads * self.head_dim]
        # Architectures that a student can have put a bias on all three or on none.
        self.qkv_proj = QKVParallelLinear(
            geometry.hidden,
            self.head_dim,
            geometry.heads,
            geometry.kv_heads,
            bias=geometry.q_bias,
            prefix=f"{prefix}.qkv_proj",
        )
        self.o_proj = RowParallelLinear(
            geometry.heads * self.head_dim,
            geometry.hidden,
            bias=geometry.o_bias,
            prefix=f"{prefix}.o_proj",
        )
        self.qk_norm = geometry.qk_norm
        if geometry.qk_norm:
            self.q_norm = RMSNorm(self.head_dim, eps=geometry.norm_eps)
            self.k_norm = RMSNorm(self.head_dim, eps=geometry.norm_eps)
        self.rope = rope
        self.attn = Attention(
            heads,
            self.head_dim,
            self.head_dim**-0.5,
            num_kv_heads=kv_heads,
            cache_config=cache_config,
            per_layer_sliding_window=window,
            prefix=f"{prefix}.attn",
        )

    def forward(self, positions: Tensor, hidden_states: Tensor) -> Tensor:
        """Attend: [tokens, hidden] → [tokens, hidden]."""
        qkv, _ = self.qkv_proj(hidden_states)
        q, k, v = qkv.split(self.sizes, -1)
        if self.qk_norm:
            q = self.q_norm(q.unflatten(-1, (-1, self.head_dim))).flatten(-2)
            k = self.k_norm(k.unflatten(-1, (-1, self.head_dim))).flatten(-2)
        q, k = self.rope(positions, q, k)
        out: Tensor = self.o_proj(self.attn(q, k, v))[0]
        return out
