"""What answers: the recurrence, the mixers, the student, the engine and the pocket teacher.

Importing this registers the student with transformers' AutoConfig and AutoModelForCausalLM.
"""

from evalsuite.models.checkpoints import Checkpoint, CheckpointInfo, describe_checkpoint, load_checkpoint
from evalsuite.models.identity import fingerprint, weights_id
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
    "fingerprint",
    "load_checkpoint",
    "set_backend",
    "weights_id",
]
