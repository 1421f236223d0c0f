"""What answers: the recurrence, the mixers, the student, the engine and the pocket teacher.

Importing this registers the student with transformers' AutoConfig and AutoModelForCausalLM.
"""

from evalsuite.models.mixers import MIXERS
from evalsuite.models.recurrence import set_backend
from evalsuite.models.student import StudentConfig, StudentForCausalLM, build_student

__all__ = ["MIXERS", "StudentConfig", "StudentForCausalLM", "build_student", "set_backend"]
