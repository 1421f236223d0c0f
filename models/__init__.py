"""Models and inference: linear-attention mixers, student model, inference engines.

Importing this package registers the student with transformers' AutoConfig and AutoModelForCausalLM.
"""

from evalsuite.models.checkpoints import Checkpoint, CheckpointInfo, describe_checkpoint, load_checkpoint
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
