"""Forward passes of teacher and students up to the language-model head."""

import torch
from torch import Tensor

from evalsuite.distill.types import CausalLM, MicroBatch


def teacher_hidden_states(teacher: CausalLM, batch: MicroBatch) -> Tensor:
    """Last hidden states [B, T, D] of the teacher."""
    decoder, config = teacher.model, teacher.config
    window = getattr(config, "sliding_window", None)
    causal = batch.position_ids is None and (window is None or window >= batch.input_ids.shape[1])
    # Gemma 3 and OLMo 3 rotate by layer type.
    causal = causal and not hasattr(decoder.rotary_emb, "layer_types")
    if config._attn_implementation != "sdpa" or not causal:
        output = decoder(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False)
        hidden: Tensor = output.last_hidden_state
        return hidden
    # transformers' decoder synchronizes with the GPU to check the positions for packed documents. Unpacked
    # sequences need no mask: SDPA layers are causal without one.
    hidden = decoder.embed_tokens(batch.input_ids)
    positions = torch.arange(batch.input_ids.shape[1], device=hidden.device)[None]
    rotary = decoder.rotary_emb(hidden, positions)
    for layer in decoder.layers:
        hidden = layer(
            hidden, attention_mask=None, position_ids=positions, use_cache=False, position_embeddings=rotary
        )
    last: Tensor = decoder.norm(hidden)
    return last


def student_hidden_states(model: CausalLM, batch: MicroBatch) -> Tensor:
    """Last hidden states [B, T, D] of a student; packed documents run as one varlen sequence."""
    if batch.cu_seqlens is None or batch.position_ids is None or not hasattr(model.config, "mixers"):
        output = model.model(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False)
        hidden: Tensor = output.last_hidden_state
        return hidden
    output = model.model(
        input_ids=batch.input_ids.view(1, -1),
        position_ids=batch.position_ids.view(1, -1),
        cu_seqlens=batch.cu_seqlens,
        row_length=batch.input_ids.shape[1],
        use_cache=False,
    )
    hidden = output.last_hidden_state
    return hidden.view(*batch.input_ids.shape, -1)


def lm_head_weight(model: CausalLM) -> Tensor:
    """Weight [V, D] of the language-model head."""
    weight: Tensor = model.get_output_embeddings().weight
    return weight
