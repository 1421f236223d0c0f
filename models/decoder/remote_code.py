"""What a student's folder holds so that transformers finds evalsuite by itself.

`AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)` imports the module that the config's
`auto_map` names. It is a few lines that import evalsuite, which must be installed.
"""

from pathlib import Path

from evalsuite.foundation import write_text

MODULE = "modeling_evalsuite_student"
AUTO_MAP = {
    "AutoConfig": f"{MODULE}.StudentConfig",
    "AutoModel": f"{MODULE}.StudentModel",
    "AutoModelForCausalLM": f"{MODULE}.StudentForCausalLM",
}
SOURCE = '''"""A student of evalsuite: install evalsuite, and load this folder with trust_remote_code=True."""

from evalsuite.models.student import StudentConfig, StudentForCausalLM, StudentModel

__all__ = ["StudentConfig", "StudentForCausalLM", "StudentModel"]
'''


def write_module(folder: Path) -> None:
    """Write the module that `AUTO_MAP` names into a student's folder."""
    write_text(folder / f"{MODULE}.py", SOURCE)
