"""State analysis records the states of the model's own forward pass."""

from typing import Any

import numpy as np
import pytest
import torch

from evalsuite.foundation import ConfigError
from evalsuite.models import build_student
from evalsuite.models.diagnostics.state_analysis import analyze_states, effective_rank


def test_last_norm_is_that_of_the_cached_state(make_teacher: Any) -> None:
    student = build_student(make_teacher(layers=3), ["gated_deltanet", "softmax", "gla"])
    row = torch.randint(0, 61, (9,), generator=torch.Generator().manual_seed(0))
    stats = analyze_states(student, row)
    with torch.no_grad():
        cache = student(row.unsqueeze(0), use_cache=True).past_key_values
    assert stats.layers == (0, 2)
    assert stats.norm.shape == stats.decay.shape == stats.write.shape == stats.rank.shape == (2, 9, 4)
    for index, layer in enumerate(stats.layers):
        state = cache.layers[layer].read()["recurrent"][0]
        np.testing.assert_allclose(stats.norm[index, -1], torch.linalg.matrix_norm(state), rtol=1e-4)
    # The first state is one outer product: its rank is one and its norm that of the update.
    np.testing.assert_allclose(stats.rank[:, 0], 1.0, atol=1e-3)
    np.testing.assert_allclose(stats.norm[:, 0], stats.write[:, 0], rtol=1e-4)
    np.testing.assert_allclose(stats.decay[:, 0, 0], 0.88, atol=1e-3)
    assert not student.model.layers[0].self_attn._forward_pre_hooks


def test_effective_rank_of_known_states() -> None:
    assert torch.allclose(effective_rank(torch.eye(5)), torch.tensor(5.0))
    assert torch.allclose(effective_rank(torch.ones(3, 4)), torch.tensor(1.0), atol=1e-4)
    assert effective_rank(torch.zeros(3, 4)) == 0


def test_a_teacher_has_no_state(make_teacher: Any) -> None:
    with pytest.raises(ConfigError, match="no recurrent layer"):
        analyze_states(build_student(make_teacher(), "softmax"), torch.arange(3))
