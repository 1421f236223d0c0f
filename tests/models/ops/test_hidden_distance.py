"""Distance of hidden states and its gradient.

Runs on a CUDA device, or on a CPU under Triton's interpreter (see test_interpreter.py).
"""

import pytest

from tests.models.ops.device import NEEDS_DEVICE, compare, draw

pytestmark = [*NEEDS_DEVICE, pytest.mark.usefixtures("tuned")]


def test_squared_distance() -> None:
    from evalsuite.models.ops.hidden_distance import squared_distance as op
    from evalsuite.models.ops.hidden_distance.training import squared_distance

    teacher = draw(2, 77, 576)
    compare(
        lambda s: [squared_distance(s, teacher) / 100],
        lambda s: [op.reference(s, teacher) / 100],
        draw(2, 77, 576),
    )
