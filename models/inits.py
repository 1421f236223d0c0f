"""Initializations of new mixers from a teacher's attention, by name; needs no torch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from evalsuite.foundation.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Init:
    """Which of the teacher's projections are copied, and how key and value heads are repeated."""

    letters: str
    """Projections that are copied, of `qkvo` (arXiv 2504.14366v1, Section 3.1; 2603.26556, App. C)."""

    def repeat_kv(self, weight: "Tensor", head_dim: int, times: int) -> "Tensor":
        """Repeat the rows of a key or value projection so that each query head gets the head of its group.

        Args:
            weight: weight or bias of the grouped projection, [num_kv_heads · head_dim, …].
            head_dim: rows of a head.
            times: query heads of a group.

        Returns:
            [num_kv_heads · times · head_dim, …].
        """
        return repeat_blocks(weight, head_dim, times)


def repeat_blocks(weight: "Tensor", size: int, times: int) -> "Tensor":
    """Repeat every block of `size` rows: [N, …] → [N · times, …]."""
    tail = weight.shape[1:]
    return weight.reshape(-1, size, *tail).repeat_interleave(times, 0).reshape(-1, *tail)


INITS: Registry[Init] = Registry("init")
"""Name → initialization."""
INITS.add("qkvo", Init("qkvo"))
INITS.add("qkv", Init("qkv"))
INITS.add("vo", Init("vo"))
INITS.add("random", Init(""))
