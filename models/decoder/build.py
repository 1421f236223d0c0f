"""Building a student from a teacher: same architecture and weights, other token mixers."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from evalsuite.foundation import ConfigError
from evalsuite.models.decoder.config import StudentConfig
from evalsuite.models.decoder.families import is_supported
from evalsuite.models.decoder.model import StudentForCausalLM
from evalsuite.models.inits import INITS
from evalsuite.models.mixers import MIXERS

VOLATILE = ("_name_or_path", "dtype", "torch_dtype", "transformers_version", "architectures")
"""Fields of a teacher's config that a student's does not hold."""


def build_student(
    teacher: PreTrainedModel,
    mixers: list[str] | str,
    *,
    options: dict[str, dict[str, Any]] | None = None,
    init: str = "qkvo",
    seed: int = 0,
    softmax_heads: Mapping[int, Sequence[int]] | None = None,
    share: bool = False,
) -> StudentForCausalLM:
    """Build a student on the teacher's device and in its dtype.

    Embeddings, norms, MLPs, head and softmax layers are copied (the latter unless their option `init` says
    otherwise). A mixer's projections are copied according to `init`; key and value heads are repeated if the
    student has one per query head.

    Args:
        mixers: one name for all layers, or one per layer.
        options: mixer name → option → value.
        init: `qkvo`, `qkv`, `vo` or `random`; see `evalsuite.models.inits`.
        seed: seed of random initialization; the global generators are not affected.
        softmax_heads: layer → its query heads that stay softmax, in a recurrent layer.
        share: embeddings, norms, MLPs and head are the teacher's tensors, for a student that is moved to
            another device; on the teacher's, training would change both.

    Raises:
        ConfigError: unknown mixer, option or init, an `init` that no layer uses, a wrong number of mixers, or
            an unsupported teacher architecture.
    """
    names = [mixers] * teacher.config.num_hidden_layers if isinstance(mixers, str) else list(mixers)
    config = student_config(teacher.config, names, options or {}, init, softmax_heads)
    parameter = next(teacher.parameters())
    devices = [parameter.device] if parameter.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.device(parameter.device):
        torch.manual_seed(seed)
        student = StudentForCausalLM.with_new_mixers(config)
    # Not `student.to(dtype)`, which would also cast the rotary frequencies, a buffer, to bfloat16.
    for mine in student.parameters():
        mine.data = mine.data.to(parameter.dtype)
    copy_teacher(student, teacher, init, share=share)
    student.config.dtype = parameter.dtype
    copy_generation_config(student, teacher)
    return student.train(teacher.training)


def to_decoder(model: PreTrainedModel) -> PreTrainedModel:
    """A transformers model of a supported family as our decoder, which takes over its modules; other models
    are returned as they are."""
    return StudentForCausalLM.of_teacher(model) if is_supported(model.config) else model


def student_config(
    teacher: PreTrainedConfig,
    mixers: list[str],
    options: dict[str, dict[str, Any]],
    init: str,
    softmax_heads: Mapping[int, Sequence[int]] | None = None,
) -> StudentConfig:
    """The config of a student with the given mixers, one per layer. Raises as `build_student`."""
    INITS.get_or_raise(init)
    if init != "qkvo" and not any(MIXERS[name].uses_init for name in mixers if name in MIXERS):
        raise ConfigError(
            f"init = '{init}' concerns mixers that replace attention, and this student has none; for softmax "
            f"layers set the option init, as in softmax: {{init: {init}}}"
        )
    return StudentConfig(
        teacher={name: value for name, value in teacher.to_dict().items() if name not in VOLATILE},
        mixers=mixers,
        mixer_options=options,
        softmax_heads=softmax_heads,
        attn_implementation=teacher._attn_implementation,
    )


def copy_generation_config(student: StudentForCausalLM, teacher: PreTrainedModel) -> None:
    """Give the student a copy of the teacher's generation config, if it has one."""
    if teacher.generation_config is not None:
        student.generation_config = type(teacher.generation_config).from_dict(
            teacher.generation_config.to_dict()
        )


@torch.no_grad()
def copy_teacher(
    student: StudentForCausalLM, teacher: PreTrainedModel, init: str, *, share: bool = False
) -> None:
    """Copy the teacher's weights into `student`, or `share` those outside of mixers."""
    weights = {name: value for name, value in teacher.state_dict().items() if ".self_attn." not in name}
    missing, unexpected = student.load_state_dict(weights, strict=False, assign=share)
    if share:
        student.tie_weights()
    absent = [name for name in missing if ".self_attn." not in name and name != "lm_head.weight"]
    if absent or unexpected:
        raise ConfigError(f"teacher and student have different parameters: {[*absent, *unexpected][:4]}")
    for mine, original in zip(student.model.layers, teacher.model.layers, strict=True):
        mine.self_attn.copy_from_teacher(original.self_attn, init)
