"""Models and inference: linear-attention mixers, student model, inference engines.

Importing this package registers the student with transformers' AutoConfig and AutoModelForCausalLM.
"""

from evalsuite.models.checkpoints import Checkpoint, CheckpointInfo, describe_checkpoint, load_checkpoint
from evalsuite.models.fingerprint import weights_id
from evalsuite.models.mixers import MIXERS
from evalsuite.models.recurrence import set_backend
from evalsuite.models.student import StudentConfig, StudentForCausalLM, build_student

__all__ = [
    "MIXERS",
    "Checkpoint",
    "CheckpointInfo",
    "StudentConfig",
    "StudentForCausalLM",
    "build_student",
    "describe_checkpoint",
    "load_checkpoint",
    "set_backend",
    "weights_id",
]
