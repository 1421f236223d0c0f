"""Tiny random models of every family that the in-process engines are compared on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from evalsuite.models.checkpoints.load import Checkpoint

VOCABULARY = 96
EOS = 2

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2,
    "bos_token_id": 1, "eos_token_id": EOS, "pad_token_id": 0,
}  # fmt: skip
_POSITIONS = {"max_position_embeddings": 256}
_MLP = {"intermediate_size": 48}
_ATTENTION = SIZES | _POSITIONS | _MLP | {"num_attention_heads": 4, "num_key_value_heads": 2}
_FULL = _ATTENTION | {"num_key_value_heads": 4}
_WINDOW = {"sliding_window": 7}
_WINDOWS = _WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}
_QWEN_WINDOW = _WINDOW | {"use_sliding_window": True, "max_window_layers": 1}
_HEAD = {"head_dim": 8}
_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
_QWEN_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_GPT = {
    "vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256,
    "bos_token_id": 1, "eos_token_id": EOS,
}  # fmt: skip
_DELTA = _HEAD | {
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
_MAMBA2 = {
    "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Family:
    """A family: its name in the table, `model_type`, and the settings of a tiny model."""

    title: str
    model_type: str
    settings: Mapping[str, Any]


FAMILIES: dict[str, Family] = {
    "llama": Family("Llama, SmolLM2", "llama", _ATTENTION),
    "qwen2": Family("Qwen2, Qwen2.5", "qwen2", _ATTENTION | _QWEN_WINDOW),
    "qwen3": Family("Qwen3", "qwen3", _ATTENTION | _HEAD | _QWEN_WINDOW),
    "qwen3_moe": Family("Qwen3-MoE", "qwen3_moe", _ATTENTION | _HEAD | _QWEN_EXPERTS | _QWEN_WINDOW),
    "mistral": Family("Mistral, sliding window", "mistral", _ATTENTION | _WINDOW),
    "mixtral": Family("Mixtral", "mixtral", _ATTENTION | _EXPERTS | _WINDOW),
    "ministral": Family("Ministral", "ministral", _ATTENTION | _HEAD | _WINDOWS),
    "gemma": Family("Gemma", "gemma", _ATTENTION | _HEAD),
    "gemma2": Family("Gemma 2", "gemma2", _ATTENTION | _HEAD | _WINDOWS | {"query_pre_attn_scalar": 8}),
    "gemma3": Family("Gemma 3", "gemma3_text", _ATTENTION | _HEAD | _WINDOWS | {"query_pre_attn_scalar": 8}),
    "gemma4": Family(
        "Gemma 4", "gemma4_text",
        _ATTENTION | _HEAD | _WINDOWS
        | {"global_head_dim": 8, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY},
    ),
    "gpt2": Family("GPT-2", "gpt2", _GPT),
    "gpt_bigcode": Family("GPT-BigCode", "gpt_bigcode", _GPT),
    "gpt_neo": Family(
        "GPT-Neo", "gpt_neo",
        SIZES | _POSITIONS | _MLP
        | {"num_layers": 2, "num_heads": 4, "window_size": 7, "attention_types": [[["global", "local"], 1]]},
    ),
    "gpt_neox": Family("GPT-NeoX, Pythia", "gpt_neox", _FULL),
    "gptj": Family("GPT-J", "gptj", _GPT | {"rotary_dim": 4}),
    "codegen": Family("CodeGen", "codegen", _GPT | {"rotary_dim": 4}),
    "gpt_oss": Family("gpt-oss", "gpt_oss", _ATTENTION | _HEAD | _WINDOWS | _EXPERTS),
    "opt": Family("OPT", "opt", _FULL | {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "xglm": Family(
        "XGLM", "xglm",
        SIZES | _POSITIONS | {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48},
    ),
    "phi": Family("Phi", "phi", _FULL),
    "phi3": Family("Phi-3, Phi-4", "phi3", _ATTENTION | _WINDOW),
    "phi3_longrope": Family(
        "Phi-3 with longrope", "phi3",
        _ATTENTION | {
            "original_max_position_embeddings": 40,
            "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 40,
                "short_factor": [1.0] * 4, "long_factor": [4.0] * 4,
            },
        },
    ),
    "olmo": Family("OLMo", "olmo", _ATTENTION),
    "olmo2": Family("OLMo 2", "olmo2", _ATTENTION),
    "olmo3": Family("OLMo 3", "olmo3", _ATTENTION | _WINDOWS),
    "smollm3": Family("SmolLM3", "smollm3", _ATTENTION | {"no_rope_layers": [1, 0]}),
    "stablelm": Family("StableLM", "stablelm", _ATTENTION),
    "starcoder2": Family("StarCoder2", "starcoder2", _ATTENTION | _WINDOW),
    "deepseek_v3": Family(
        "DeepSeek-V3", "deepseek_v3",
        _FULL | {
            "moe_intermediate_size": 16, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
            "num_experts_per_tok": 2, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 4, "v_head_dim": 8, "first_k_dense_replace": 1,
        },
    ),
    "cohere": Family("Cohere, Command R", "cohere", _ATTENTION | {"logit_scale": 0.25}),
    "cohere2": Family("Cohere 2", "cohere2", _ATTENTION | _WINDOWS | {"logit_scale": 0.25}),
    "granite": Family(
        "Granite", "granite",
        _ATTENTION | {
            "logits_scaling": 4.0, "residual_multiplier": 0.5, "embedding_multiplier": 2.0,
            "attention_multiplier": 0.4,
        },
    ),
    "exaone4": Family("EXAONE 4", "exaone4", _ATTENTION | _WINDOWS),
    "glm4": Family("GLM-4", "glm4", _ATTENTION | _HEAD),
    "nemotron": Family("Nemotron", "nemotron", _ATTENTION),
    "seed_oss": Family("Seed-OSS", "seed_oss", _ATTENTION | _HEAD),
    "llama4": Family(
        "Llama 4", "llama4_text",
        _ATTENTION | _HEAD | _EXPERTS | {
            "intermediate_size_mlp": 48, "attention_chunk_size": 16, "moe_layers": [1],
            "no_rope_layers": [1, 0], "layer_types": ["chunked_attention", "full_attention"],
        },
    ),
    "bloom": Family("BLOOM (ALiBi)", "bloom", SIZES | {"n_layer": 2, "n_head": 4}),
    "falcon": Family("Falcon", "falcon", _FULL),
    "falcon_alibi": Family("Falcon with ALiBi", "falcon", _FULL | {"alibi": True}),
    "mpt": Family(
        "MPT (ALiBi)", "mpt", SIZES | {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 256}
    ),
    "rwkv": Family("RWKV", "rwkv", SIZES | {"attention_hidden_size": 32, "context_length": 256}),
    "mamba": Family("Mamba", "mamba", SIZES | {"state_size": 8}),
    "falcon_mamba": Family("Falcon-Mamba", "falcon_mamba", SIZES | {"state_size": 8}),
    "mamba2": Family(
        "Mamba2", "mamba2",
        SIZES | {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8},
    ),
    "falcon_h1": Family("Falcon-H1", "falcon_h1", _ATTENTION | _HEAD | _MAMBA2 | {"mamba_d_ssm": 64}),
    "bamba": Family("Bamba", "bamba", _ATTENTION | _MAMBA2 | {"attn_layer_indices": [1]}),
    "granitemoehybrid": Family(
        "Granite 4 hybrid", "granitemoehybrid",
        _ATTENTION | _MAMBA2 | _EXPERTS
        | {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 16},
    ),
    "zamba2": Family(
        "Zamba2", "zamba2",
        _FULL | {
            "num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "mamba"],
            "hybrid_layer_ids": [1], "mamba_d_state": 8, "n_mamba_heads": 8, "mamba_headdim": 8,
            "mamba_ngroups": 1, "chunk_size": 8, "num_mem_blocks": 1,
        },
    ),
    "jamba": Family(
        "Jamba", "jamba",
        _ATTENTION | {
            "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
            "expert_layer_offset": 1, "num_experts": 2, "mamba_d_state": 8, "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
    ),
    "nemotron_h": Family(
        "Nemotron-H", "nemotron_h",
        _ATTENTION | _HEAD | {
            "num_hidden_layers": 3, "layers_block_type": ["mamba", "attention", "mlp"], "mamba_num_heads": 8,
            "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 1, "chunk_size": 8,
        },
    ),
    "qwen3_next": Family(
        "Qwen3-Next", "qwen3_next",
        _ATTENTION | _DELTA | _QWEN_EXPERTS | {"shared_expert_intermediate_size": 16},
    ),
    "qwen3_5": Family("Qwen3.5", "qwen3_5_text", _ATTENTION | _DELTA),
    "olmo_hybrid": Family("OLMo hybrid", "olmo_hybrid", _ATTENTION | _DELTA),
    "lfm2": Family(
        "LFM2", "lfm2", _ATTENTION | {"block_ff_dim": 48, "layer_types": ["conv", "full_attention"]}
    ),
    "recurrent_gemma": Family(
        "RecurrentGemma", "recurrent_gemma",
        _ATTENTION | {
            "num_hidden_layers": 3, "num_key_value_heads": 1, "attention_window_size": 16, "lru_width": 32
        },
    ),
    "minimax": Family(
        "MiniMax", "minimax",
        _ATTENTION | _HEAD | _EXPERTS
        | {"layer_types": ["linear_attention", "full_attention"], "block_size": 8},
    ),
    "xlstm": Family("xLSTM", "xlstm", SIZES | {"num_heads": 4}),
}  # fmt: skip
"""By name; windows, chunks and switches of rotary frequencies are shorter than the prompts."""


def make_model(family: Family) -> PreTrainedModel:
    """A random model whose tokens depend on each other."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family.model_type, **family.settings))
    for name, parameter in model.named_parameters():
        # At the usual scale of random weights one token hardly sees another.
        if parameter.dim() > 1 and "embed" not in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one word per id."""
    words = {"<pad>": 0, "<s>": 1, "</s>": 2} | {f"w{number}": number for number in range(3, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def make_checkpoint(family: Family) -> Checkpoint:
    """`make_model` and `make_tokenizer` as a loaded checkpoint."""
    return Checkpoint(family.model_type, "", make_model(family), make_tokenizer(), "0" * 16)
