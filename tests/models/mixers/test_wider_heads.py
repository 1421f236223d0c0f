"""Heads wider than the teacher's start from the teacher's channels."""

from typing import Any

import pytest
import torch

from evalsuite.foundation import ConfigError
from evalsuite.models import build_student
from evalsuite.models.ops.rotary import rotary

OPTIONS = {"rotary": True, "activation": "none"}


@pytest.fixture
def teacher(make_teacher: Any) -> Any:
    return make_teacher()


def mixer_of(teacher: Any, mixer: str = "gated_deltanet", **options: Any) -> Any:
    torch.manual_seed(0)
    return build_student(teacher, mixer, options={mixer: OPTIONS | options}).model.layers[0].self_attn


def test_further_values_do_not_change_the_output_at_first(teacher: Any) -> None:
    plain, wide = (mixer_of(teacher, expand_v=factor) for factor in (1.0, 2.0))
    assert wide.state_shapes()["recurrent"][2] == 2 * plain.state_shapes()["recurrent"][2]
    with torch.no_grad():  # Gates are drawn after the projections, whose sizes differ.
        for name in ("a_proj", "b_proj"):
            getattr(wide, name).load_state_dict(getattr(plain, name).state_dict())
    x = torch.randn(2, 12, teacher.config.hidden_size)
    rotary = teacher.model.rotary_emb(x, torch.arange(12)[None])
    torch.testing.assert_close(wide(x, rotary)[0], plain(x, rotary)[0], rtol=1e-4, atol=1e-5)
    wide(x, rotary)[0].square().sum().backward()
    columns = wide.o_proj.weight.grad.unflatten(1, (wide.num_heads, -1))
    assert columns[..., plain.head_v_dim :].abs().max() > 0


@pytest.mark.parametrize("mixer", ["gated_deltanet", "kda"])
def test_the_teachers_channels_come_first(teacher: Any, mixer: str) -> None:
    plain, wide = (mixer_of(teacher, mixer, expand_k=factor) for factor in (1.0, 2.0))
    for letter in "qk":
        ours, own = (getattr(each, f"{letter}_proj").weight for each in (plain, wide))
        heads = own.unflatten(0, (wide.num_heads, -1))
        torch.testing.assert_close(heads[:, : plain.head_k_dim].flatten(0, 1), ours)
        teachers, further = heads.split(plain.head_k_dim, 1)
        squares = [part.square().mean((1, 2)) for part in (teachers, further)]
        torch.testing.assert_close(squares[0], squares[1])
    x = torch.randn(2, 12, teacher.config.hidden_size)
    out, _ = wide(x, teacher.model.rotary_emb(x, torch.arange(12)[None]))
    assert torch.isfinite(out).all()


def test_further_channels_are_not_rotated() -> None:
    x = torch.randn(1, 5, 2, 12)
    angle = torch.randn(1, 5, 4).repeat(1, 1, 2)
    cos, sin = angle.cos(), angle.sin()
    found = rotary(x, cos, sin)
    torch.testing.assert_close(found[..., 8:], x[..., 8:], rtol=0, atol=0)
    torch.testing.assert_close(found[..., :8], rotary(x[..., :8], cos, sin))


def test_heads_of_other_channels_are_refused(teacher: Any) -> None:
    with pytest.raises(ConfigError, match="rotary embedding"):
        mixer_of(teacher, num_heads=1)
    with pytest.raises(ConfigError, match="rotary embedding"):
        mixer_of(teacher, expand_k=0.5)
    with pytest.raises(ConfigError, match=r"v_proj\.weight"):
        mixer_of(teacher, expand_v=0.5)
