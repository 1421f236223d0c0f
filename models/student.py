"""The names by which the folder of a saved student finds its classes; see `decoder.config.MODULE`."""

from evalsuite.models.decoder import StudentConfig, StudentForCausalLM, StudentModel, build_student

__all__ = ["StudentConfig", "StudentForCausalLM", "StudentModel", "build_student"]
