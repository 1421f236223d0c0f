"""Softmax and sliding-window layers on vLLM's own attention, for all supported teachers."""

from torch import Tensor, nn
from vllm.config import CacheConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import QKVParallelLinear, RowParallelLinear

from evalsuite.models.mixers import AttentionShape


class SoftmaxLayer(nn.Module):
    """Attention of a Llama, Mistral, Qwen2 or Qwen3 teacher, with the teacher's biases and QK-norm.

    Args:
        shape: the teacher's attention shape.
        rope: vLLM's rotary embedding.
        window: number of latest tokens a query attends to, itself included; None for all.
        cache_config: vLLM's.
        prefix: the layer's name in vLLM.
    """

    def __init__(
        self,
        shape: AttentionShape,
        rope: nn.Module,
        window: int | None,
        cache_config: CacheConfig,
        prefix: str,
    ) -> None:
        super().__init__()
        tp_size = get_tensor_model_parallel_world_size()
        self.head_dim = shape.head_dim
        num_heads, num_kv_heads = shape.num_heads // tp_size, max(1, shape.num_kv_heads // tp_size)
        self.sizes = [n * self.head_dim for n in (num_heads, num_kv_heads, num_kv_heads)]
        # The supported architectures have a bias on all three projections or on none.
        self.qkv_proj = QKVParallelLinear(
            shape.hidden_size,
            self.head_dim,
            shape.num_heads,
            shape.num_kv_heads,
            bias=shape.q_bias,
            prefix=f"{prefix}.qkv_proj",
        )
        self.o_proj = RowParallelLinear(
            shape.num_heads * self.head_dim,
            shape.hidden_size,
            bias=shape.o_bias,
            prefix=f"{prefix}.o_proj",
        )
        self.qk_norm = shape.qk_norm is not None
        if self.qk_norm:
            self.q_norm = RMSNorm(self.head_dim, eps=shape.norm_eps)
            self.k_norm = RMSNorm(self.head_dim, eps=shape.norm_eps)
        self.rope = rope
        self.attn = Attention(
            num_heads,
            self.head_dim,
            self.head_dim**-0.5,
            num_kv_heads=num_kv_heads,
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
        return self.o_proj(self.attn(q, k, v))[0]
