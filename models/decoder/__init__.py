"""The student, a Hugging Face model: the teacher's architecture with other token mixers."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from evalsuite.models.decoder.build import build_student
from evalsuite.models.decoder.config import StudentConfig
from evalsuite.models.decoder.model import StudentForCausalLM, StudentModel

AutoConfig.register(StudentConfig.model_type, StudentConfig, exist_ok=True)
AutoModel.register(StudentConfig, StudentModel, exist_ok=True)
AutoModelForCausalLM.register(StudentConfig, StudentForCausalLM, exist_ok=True)

__all__ = ["StudentConfig", "StudentForCausalLM", "StudentModel", "build_student"]
