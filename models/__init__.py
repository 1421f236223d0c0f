"""Models and inference: linear-attention mixers, student model, inference engines.

Importing this package is cheap: what reads requests or responses needs no torch. Importing
`evalsuite.models.decoder` registers students with transformers' AutoConfig and AutoModelForCausalLM, as
loading or describing a student does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evalsuite.models.checkpoints.fingerprint import weights_id
    from evalsuite.models.checkpoints.load import (
        Checkpoint,
        CheckpointInfo,
        describe_checkpoint,
        load_checkpoint,
    )
    from evalsuite.models.decoder import StudentConfig, StudentForCausalLM, build_student
    from evalsuite.models.mixers import MIXERS
    from evalsuite.models.ops.dispatch import kernel_policy

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
    "Checkpoint": "checkpoints.load",
    "CheckpointInfo": "checkpoints.load",
    "StudentConfig": "decoder",
    "StudentForCausalLM": "decoder",
    "build_student": "decoder",
    "describe_checkpoint": "checkpoints.load",
    "kernel_policy": "ops.dispatch",
    "load_checkpoint": "checkpoints.load",
    "weights_id": "checkpoints.fingerprint",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
