"""Which benchmarks execute generated code, and the process with limits in which they do.

Whether code is executed is a property of EvalScope's benchmark, never a setting: one that is not known to be
free of execution is treated as executing. Execution needs the user's consent and happens in a process
without network, without the environment, and with limited time, memory and disk. This prevents accidents,
not attacks.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

from evalsuite.foundation import nearest

ALLOW = "EVALSUITE_RUN_CODE"
"""Environment variable that, set to 1, allows benchmarks to execute generated code."""

BY_OUTPUT = frozenset({"live_code_bench"})
"""Those of `IN_SANDBOX` that compare what a program prints; others put their tests into the program."""
IN_SANDBOX = BY_OUTPUT | {"humaneval", "mbpp"}
"""EvalScope benchmarks that execute generated code, all of it through the sandbox."""

_WITHOUT_EXECUTION = """
agieval aime24 aime25 aime26 amc anli arc arc_agi_2 arc_indic arxivmath banking77 bbh biomix_qa boolq ceval
cmath cmmlu coin_flip commonsense_qa competition_math contract_nli drop eq_bench general_mcq general_qa
gpqa_diamond gsm8k gsm8k_indic halueval hellaswag hellaswag_hi hmmt25 hmmt26 hmmt_nov25 ifbench ifeval
imo_answerbench indic_boolq iquiz logi_qa longbench_v2 math_500 math_qa med_mcqa mgsm milu minerva_math mmlu
mmlu_pro mmlu_redux mmmlu musr openai_mrcr piqa poly_math process_bench pubmedqa qasc race safety_bench sciq
siqa super_gpqa trivia_qa triviaqa_indic truthful_qa winogrande zebralogicbench
"""
WITHOUT_EXECUTION = frozenset(_WITHOUT_EXECUTION.split())
"""EvalScope benchmarks whose source executes nothing, as a scan in `tests/protocols` confirms."""

SECONDS = 5.0
OUTPUT_SECONDS = 6.0
"""LiveCodeBench's limit of one test."""
MEMORY = 1 << 30
FILE = 1 << 20
FINISHED = 86
"""Exit code of the child after the last statement: a program that ends earlier has not passed its tests."""
_CHILD = Path(__file__).with_name("sandbox_child.py")


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """How a program ended."""

    passed: bool
    """It ran to its last statement without an error."""
    message: str
    """The last line of its stderr, if it did not pass."""
    output: str = ""
    """What it printed."""
    exited: bool = False
    """It ended without an error, at its last statement or before."""


def execution_refusal(dataset: str) -> str | None:
    """Return why an EvalScope benchmark (or ``evalsuite``) may not run here; None if it may."""
    if dataset == "evalsuite" or dataset in WITHOUT_EXECUTION:
        return None
    if dataset not in IN_SANDBOX:
        why = "not known to be free of code execution, and its code cannot run in evalsuite's sandbox"
        return why + nearest(dataset, WITHOUT_EXECUTION | IN_SANDBOX)
    if os.environ.get(ALLOW) == "1":
        return None
    return f"it executes generated code; set {ALLOW}=1 to run that code in a sandbox"


def run_limited(
    program: str, *, seconds: float = SECONDS, memory: int = MEMORY, file: int = FILE
) -> ExecutionResult:
    """Run a Python program in an empty temporary folder.

    Args:
        program: source code.
        seconds: limit of wall time and processor time.
        memory: limit of address space in bytes.
        file: limit of file size in bytes, and of what it prints.

    Returns:
        How it ended within the limits; a program that breaks one has failed.
    """
    with (
        TemporaryDirectory(prefix="evalsuite-code-") as folder,
        TemporaryFile() as errors,
        TemporaryFile() as printed,
    ):
        arguments = [str(int(value)) for value in (seconds + 1, memory, file, FINISHED)]
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", str(_CHILD), *arguments],
                input=program.encode(),
                cwd=folder,
                env={"PATH": os.defpath, "HOME": folder, "TMPDIR": folder, "PYTHONHASHSEED": "0"},
                stdout=printed,
                stderr=errors,
                timeout=seconds,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            return ExecutionResult(False, f"took longer than {seconds:g} s")
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
        printed.seek(0)
        output = printed.read().decode(errors="replace")
    if done.returncode == FINISHED:
        return ExecutionResult(True, "", output, exited=True)
    message = (lines[-1] if lines else f"exit code {done.returncode}")[:300]
    return ExecutionResult(False, message, output, exited=done.returncode == 0)
