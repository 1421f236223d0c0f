"""Building a student from a teacher: same architecture and weights, other token mixers."""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from evalsuite.foundation import ConfigError, nearest
from evalsuite.models.mixers import MIXERS, RecurrentMixer, parse_options, repeat_kv_weights
from evalsuite.models.student.config import StudentConfig
from evalsuite.models.student.model import StudentForCausalLM

Init = Literal["qkvo", "qkv", "vo", "random"]
INITS: dict[str, str] = {"qkvo": "qkvo", "qkv": "qkv", "vo": "vo", "random": ""}
"""Teacher projections that initialize a mixer (arXiv 2504.14366v1, Section 3.1; 2603.26556, App. C)."""
SOFTMAX_INITS = {"teacher": "qkvo", "qkv": "qkv", "vo": "vo", "random": ""}
"""The same for softmax layers, by their option `init`."""


def build_student(
    teacher: PreTrainedModel,
    mixers: list[str] | str,
    *,
    options: dict[str, dict[str, Any]] | None = None,
    init: str = "qkvo",
    seed: int = 0,
    kv_expansion: str = "heads",
) -> StudentForCausalLM:
    """Build a student on the teacher's device and in its dtype.

    Embeddings, norms, MLPs, head and softmax layers are copied (the latter unless their option `init` says
    otherwise). A mixer's projections are copied according to `init`; key and value heads are repeated if the
    student has one per query head.

    Args:
        mixers: one name for all layers, or one per layer.
        options: mixer name → option → value.
        init: `qkvo`, `qkv`, `vo` or `random`.
        seed: seed of random initialization; the global generators are not affected.
        kv_expansion: how key and value heads are repeated; see `repeat_kv_weights`.

    Raises:
        ConfigError: unknown mixer, option or init, an `init` that no layer uses, a wrong number of mixers, or
            an unsupported teacher architecture.
    """
    if init not in INITS:
        raise ConfigError(f"init = '{init}'{nearest(init, INITS)}")
    names = [mixers] * teacher.config.num_hidden_layers if isinstance(mixers, str) else list(mixers)
    if init != "qkvo" and not any(
        issubclass(MIXERS[name], RecurrentMixer) for name in names if name in MIXERS
    ):
        raise ConfigError(
            f"init = '{init}' concerns mixers that replace attention, and this student has none; for softmax "
            f"layers set the option init, as in softmax: {{init: {init}}}"
        )
    config = StudentConfig(
        teacher=teacher_config_dict(teacher),
        mixers=names,
        mixer_options=options or {},
        attn_implementation=teacher.config._attn_implementation,
    )
    parameter = next(teacher.parameters())
    devices = [parameter.device] if parameter.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.device(parameter.device):
        torch.manual_seed(seed)
        student = StudentForCausalLM(config)
    # Not `student.to(dtype)`, which would also cast the rotary frequencies, a buffer, to bfloat16.
    for mine in student.parameters():
        mine.data = mine.data.to(parameter.dtype)
    copy_teacher(student, teacher, init, kv_expansion)
    student.config.dtype = parameter.dtype
    if teacher.generation_config is not None:
        student.generation_config = type(teacher.generation_config).from_dict(
            teacher.generation_config.to_dict()
        )
    return student.train(teacher.training)


def teacher_config_dict(teacher: PreTrainedModel) -> dict[str, Any]:
    """The teacher's config for use in a student's: without paths, dtype and versions."""
    values: dict[str, Any] = teacher.config.to_dict()
    for name in ("_name_or_path", "dtype", "torch_dtype", "transformers_version", "architectures"):
        values.pop(name, None)
    return values


@torch.no_grad()
def copy_teacher(
    student: StudentForCausalLM, teacher: PreTrainedModel, init: str, kv_expansion: str = "heads"
) -> None:
    """Copy the teacher's weights into `student`."""
    weights = {name: value for name, value in teacher.state_dict().items() if ".self_attn." not in name}
    missing, unexpected = student.load_state_dict(weights, strict=False)
    absent = [name for name in missing if ".self_attn." not in name and name != "lm_head.weight"]
    if absent or unexpected:
        raise ConfigError(f"teacher and student have different parameters: {[*absent, *unexpected][:4]}")
    for layer, (mine, original) in enumerate(zip(student.model.layers, teacher.model.layers, strict=True)):
        attention = original.self_attn
        if isinstance(mine.self_attn, RecurrentMixer):
            copy_attention(mine.self_attn, attention, init, kv_expansion)
        else:
            name = student.config.mixers[layer]
            options: Any = parse_options(
                MIXERS[name].Options, student.config.mixer_options.get(name, {}), name
            )
            copy_softmax(mine.self_attn, attention, SOFTMAX_INITS[options.init])


def copy_softmax(target: nn.Module, attention: nn.Module, letters: str) -> None:
    """Copy the projections in `letters` (with their norms) into a softmax layer; the others stay as drawn."""
    source = attention.state_dict()
    chosen = {name: value for name, value in source.items() if name[0] in letters}
    found = target.load_state_dict(chosen, strict=False)
    assert not found.unexpected_keys
    assert set(found.missing_keys) == source.keys() - chosen.keys()


def normalize_key_proj_as_gate(keys: nn.Linear, name: str) -> Tensor:
    """Scale a key projection for use as the logits of an input gate: unit rows, bias to match.

    Keys of a trained teacher have magnitudes of tens, which would saturate a sigmoid gate.
    """
    length = keys.weight.norm(dim=1).clamp_min(1e-6)
    return keys.weight / length.unsqueeze(1) if name == "weight" else keys.bias / length


def copy_attention(
    mixer: RecurrentMixer, attention: nn.Module, init: str, kv_expansion: str = "heads"
) -> None:
    """Copy the projections in `init`; QK-norms are copied along with q and k."""
    letters = INITS[init]
    for letter in letters:
        source, target = getattr(attention, f"{letter}_proj"), getattr(mixer, f"{letter}_proj", None)
        if target is None:
            continue
        for name in ("weight", "bias"):
            value, place = getattr(source, name), getattr(target, name)
            if value is None:
                continue
            if letter == "k" and not mixer.has_keys:
                value = normalize_key_proj_as_gate(source, name)
            if letter in "kv" and mixer.options.expand_kv and mixer.attention_shape.num_kv_groups > 1:
                value = repeat_kv_weights(value, mixer.attention_shape, kv_expansion)
            if value.shape != place.shape:
                raise ConfigError(
                    f"layer {mixer.layer_idx}: the teacher's {letter}_proj.{name} is {tuple(value.shape)}, "
                    f"that of {mixer.name} {tuple(place.shape)}; choose an init that does not copy it "
                    f"({', '.join(INITS)}), or the teacher's widths (expand_k, expand_v, num_qk_heads)"
                )
            place.copy_(value)
    for letter in "qk":
        if letter in letters and hasattr(mixer, f"{letter}_norm"):
            getattr(mixer, f"{letter}_norm").weight.copy_(getattr(attention, f"{letter}_norm").weight)
