"""Layerwise objectives and forward passes of teachers whose blocks are not Llama's."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from evalsuite.distill.objectives.forward import hidden_states
from evalsuite.distill.training.held_out import residual_streams
from evalsuite.distill.types import MicroBatch
from evalsuite.models import build_student
from evalsuite.models.decoder.block import LayerActivations
from evalsuite.models.decoder.build import to_decoder
from evalsuite.models.decoder.families import FAMILIES

LENGTH = 12


def make_teacher(family: str) -> Any:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "initializer_range": 0.2, "pad_token_id": None, "head_dim": 8,
    }  # fmt: skip
    if family in ("olmo3", "gemma2", "gemma3_text"):
        settings |= {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
    if family == "smollm3":
        settings |= {"no_rope_layers": [1, 0]}
    return to_decoder(AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings)).eval())


def batch() -> MicroBatch:
    ids = torch.randint(0, 61, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    return MicroBatch(ids, ids)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_hidden_states_are_those_of_the_decoder(family: str) -> None:
    teacher = make_teacher(family)
    wanted = teacher.model(batch().input_ids).last_hidden_state
    assert torch.equal(hidden_states(teacher, batch()), wanted)
    student: Any = build_student(teacher, "softmax")
    torch.testing.assert_close(hidden_states(student, batch()), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("own_input_norm", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_blocks_equal_the_teachers(family: str, own_input_norm: bool) -> None:
    """A window as wide as the sequence computes what full attention computes."""
    teacher = make_teacher(family)
    student = build_student(
        teacher, "sliding_window", options={"sliding_window": {"window": LENGTH}}, init="qkvo"
    )
    compared = []

    def compare(layer: int, activations: LayerActivations) -> None:
        block = student.model.layers[layer]
        normed = None if own_input_norm else activations.input
        found = block(activations.block_input, activations.context, normed=normed)
        torch.testing.assert_close(found, activations.block_output, rtol=1e-4, atol=1e-4)
        compared.append(layer)

    hidden_states(teacher, batch(), observe=compare)
    assert compared == [0, 1]


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_residual_stream_after_a_mixer_includes_the_mixer(family: str) -> None:
    teacher = make_teacher(family)
    wanted = []

    def after_mixer(layer: int, activations: LayerActivations) -> None:
        block = teacher.model.layers[layer]
        normed = hasattr(block, "post_feedforward_layernorm")
        added = block.post_attention_layernorm(activations.output) if normed else activations.output
        wanted.append(activations.block_input + added)

    hidden_states(teacher, batch(), observe=after_mixer)
    torch.testing.assert_close(residual_streams(teacher, batch()), wanted, rtol=1e-5, atol=1e-5)
