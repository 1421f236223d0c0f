"""Models and inference: linear-attention mixers, student model, inference engines.

Importing this package is cheap: what reads requests or responses needs no torch. Importing
`evalsuite.models.student` registers the student with transformers' AutoConfig and AutoModelForCausalLM, as
loading or describing a student does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evalsuite.models.checkpoints import (
        Checkpoint,
        CheckpointInfo,
        describe_checkpoint,
        load_checkpoint,
    )
    from evalsuite.models.fingerprint import weights_id
    from evalsuite.models.kernels.policy import kernel_policy
    from evalsuite.models.mixers import MIXERS
    from evalsuite.models.student import StudentConfig, StudentForCausalLM, build_student

__all__ = [
    "MIXERS",
    "Checkpoint",
    "CheckpointInfo",
    "StudentConfig",
    "StudentForCausalLM",
    "build_student",
    "describe_checkpoint",
    "kernel_policy",
    "load_checkpoint",
    "weights_id",
]

_HOMES = {
    "MIXERS": "mixers",
    "Checkpoint": "checkpoints",
    "CheckpointInfo": "checkpoints",
    "StudentConfig": "student",
    "StudentForCausalLM": "student",
    "build_student": "student",
    "describe_checkpoint": "checkpoints",
    "kernel_policy": "kernels.policy",
    "load_checkpoint": "checkpoints",
    "weights_id": "fingerprint",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
