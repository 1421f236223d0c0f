"""What a state holds of a token: values computed by hand, and the recurrence as written in the papers."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from evalsuite.models.diagnostics.state_analysis import (
    effective_rank,
    log_decay_per_token,
    readout_weights,
    split_states,
    states_at,
    weight_share,
    write_norm,
)
from evalsuite.models.ops.recurrence import Erase, RecurrenceInputs, naive_recurrent, recurrence_matrix
from tests.parity.kernel_accuracy import RULES


def toy(keys: list[list[float]], values: list[list[float]], **others: Tensor) -> RecurrenceInputs:
    """One row and one head; every query is (1, 1)."""
    k, v = (torch.tensor(x)[None, :, None] for x in (keys, values))
    return RecurrenceInputs(q=torch.ones_like(k), k=k, v=v, **others)


def held(inputs: RecurrenceInputs, bounds: list[int]) -> list[float]:
    """Norms of what the state holds of the first token."""
    first = torch.zeros(1, inputs.k.shape[1], dtype=torch.bool)
    first[0, 0] = True
    _, part = split_states(inputs, first, torch.tensor([bounds]))
    return torch.linalg.matrix_norm(part).flatten().tolist()


def share_of_first(inputs: RecurrenceInputs, position: int) -> float:
    first = torch.zeros(1, inputs.k.shape[1], dtype=torch.bool)
    first[0, 0] = True
    return float(weight_share(readout_weights(inputs, torch.tensor([[position]])), first))


KEYS, VALUES = [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], [[3.0, 4.0], [0.0, 1.0], [0.0, 1.0]]


def test_a_scalar_decay_halves_what_is_held_every_token() -> None:
    for log_decay in (torch.tensor([math.log(0.5)]), torch.full((1, 3, 1), math.log(0.5))):
        inputs = toy(KEYS, VALUES, log_decay=log_decay)
        assert held(inputs, [1, 2, 3]) == pytest.approx([5.0, 2.5, 1.25])
        torch.testing.assert_close(
            states_at(inputs, torch.tensor([[3]]))[0, 0, 0], torch.tensor([[0.75, 1.0], [0.0, 1.5]])
        )
        # Weights ¼, ½ and 1 of the three tokens.
        assert share_of_first(inputs, 2) == pytest.approx(0.25 / 1.75)
        torch.testing.assert_close(log_decay_per_token(inputs), torch.full((1, 3, 1, 1), math.log(0.5)))
        torch.testing.assert_close(write_norm(inputs).flatten(), torch.tensor([5.0, 1.0, 1.0]))


def test_a_decay_per_channel_forgets_channel_by_channel() -> None:
    decay = torch.tensor([0.5, 1.0]).log().expand(1, 3, 1, 2)
    inputs = toy([[1.0, 1.0], [0.0, 1.0], [0.0, 1.0]], VALUES, log_decay=decay)
    assert held(inputs, [1, 3]) == pytest.approx([5 * math.sqrt(2), 5 * math.sqrt(1 + 0.25**2)])
    # Key (1, 1) decays to (¼, 1) and is read by (1, 1).
    assert share_of_first(inputs, 2) == pytest.approx(1.25 / 3.25)
    torch.testing.assert_close(log_decay_per_token(inputs)[0, 0, 0], torch.tensor([math.log(0.5), 0.0]))


def test_the_delta_rule_projects_out_what_is_overwritten() -> None:
    keys = [[1.0, 0.0], [1.0, 0.0], [0.6, 0.8]]
    beta = torch.tensor([1.0, 0.75, 1.0])[None, :, None]
    inputs = toy(keys, VALUES, beta=beta)
    # The second write replaces ¾ under the same key; the third leaves (1, 0) − 0.6 · (0.6, 0.8).
    assert held(inputs, [1, 2, 3]) == pytest.approx([5.0, 1.25, 1.25 * 0.8])
    torch.testing.assert_close(write_norm(inputs).flatten(), torch.tensor([5.0, 0.75, 1.0]))
    # q = (1, 1) reads ¼ (0.64 − 0.48) of the first, ¾ (0.64 − 0.48) of the second, 1.4 of the third.
    assert share_of_first(inputs, 2) == pytest.approx(0.04 / (0.04 + 0.12 + 1.4))


def test_without_decay_nothing_is_lost() -> None:
    inputs = toy(KEYS, VALUES)
    assert held(inputs, [1, 2, 3]) == pytest.approx([5.0, 5.0, 5.0])
    assert share_of_first(inputs, 2) == pytest.approx(1 / 3)
    assert not log_decay_per_token(inputs).any()


def test_effective_rank_of_known_states() -> None:
    assert torch.allclose(effective_rank(torch.eye(5)), torch.tensor(5.0))
    assert torch.allclose(effective_rank(torch.ones(3, 4)), torch.tensor(1.0), atol=1e-4)
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert float(effective_rank(torch.diag(torch.tensor([3.0, 1.0])))) == pytest.approx(math.exp(entropy))
    assert effective_rank(torch.zeros(3, 4)) == 0


def random_inputs(decay: str, rule: str) -> RecurrenceInputs:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    shapes = {"head": (3,), "token": (2, 70, 3), "channel": (2, 70, 3, 8)}
    log_decay = None if decay == "none" else -0.2 * torch.rand(shapes[decay], generator=generator)
    k = torch.nn.functional.normalize(draw(2, 70, 3, 8), dim=-1)
    beta = torch.rand(2, 70, 3, generator=generator) if rule == "delta" else None
    read = k * torch.rand(2, 70, 3, 8, generator=generator)
    return RecurrenceInputs(
        q=draw(2, 70, 3, 8),
        k=k,
        v=draw(2, 70, 3, 5),
        log_decay=log_decay,
        beta=beta,
        erase=Erase(read, read if rule == "two keys" else None) if rule in RULES[2:] else None,
    )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("decay", ["none", "head", "token", "channel"])
def test_states_and_readout_are_those_of_the_recurrence(decay: str, rule: str) -> None:
    inputs = random_inputs(decay, rule)
    bounds = torch.tensor([[1, 7, 7, 66], [0, 20, 65, 70]])
    followed = torch.zeros(2, 70, dtype=torch.bool)
    followed[0, 3:6], followed[1, 0] = True, True
    whole, part = split_states(inputs, followed, bounds)
    masked = replace(inputs, v=inputs.v * followed[..., None, None])
    for found, source in ((whole, inputs), (part, masked)):
        for row in range(2):
            for number, end in enumerate(bounds[row].tolist()):
                state = _naive_state(source, row, end)
                torch.testing.assert_close(found[number, row], state, rtol=1e-5, atol=1e-5)
    positions = torch.tensor([[66, 68], [2, 69]])
    rows = readout_weights(inputs, positions)
    matrix = recurrence_matrix(inputs)
    wanted = torch.stack([matrix[row, :, positions[row]] for row in range(2)])
    torch.testing.assert_close(rows, wanted, rtol=1e-4, atol=1e-5)


def _naive_state(inputs: RecurrenceInputs, row: int, length: int) -> Tensor:
    return naive_recurrent(inputs.with_tokens(lambda x: x[row : row + 1, :length]))[1][0]
