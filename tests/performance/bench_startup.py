"""How long commands take to their first words, against imports that no such command can do without.

    python -m tests.performance.bench_startup --run runs/demo --checkpoint model.gguf --out DIR

Every command and its peer, a Python process that only imports, run in turn in processes of their own; after
one round that warms the file cache, medians are taken. The ratio is what evalsuite itself costs, on any
machine: `--help` against the parser of the standard library, `gate` against readers of tables and policies,
`show checkpoint` against transformers' base class of models, on which the layers that are counted are built.

Exit codes: 0 all ratios are within their bounds, 1 one is not, 64 or more an error.
"""

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from evalsuite.cli.exit_codes import guarded
from evalsuite.foundation import ConfigError, write_json
from evalsuite.foundation.parser import Parser

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_POLICY = ROOT / "reports" / "examples" / "demo.yaml"


@dataclass(frozen=True, slots=True)
class Command:
    """A command, what its peer imports, and the bound of their ratio."""

    arguments: tuple[str, ...]
    imports: str
    max_ratio: float
    exit_codes: tuple[int, ...] = (0,)

    @property
    def peer(self) -> list[str]:
        """A process that imports, and ends as the command line does: without freeing what ends with it."""
        return [sys.executable, "-c", f"import os, {self.imports}; os._exit(0)"]

    @property
    def command(self) -> list[str]:
        """The process of the command."""
        return [sys.executable, "-m", "evalsuite", *self.arguments]


def commands(run: Path, policy: Path, checkpoint: str) -> dict[str, Command]:
    """Name → command; a verdict may be any, as it depends on the run."""
    return {
        "--help": Command(("--help",), "argparse", 8),
        "gate": Command(
            ("gate", str(run), "--policy", str(policy)),
            "pandas, pyarrow.parquet, pydantic, scipy.special, yaml",
            4,
            (0, 1, 2, 3),
        ),
        "show checkpoint": Command(("show", "checkpoint", checkpoint), "transformers.modeling_utils", 1.5),
    }


def python_path(*folders: Path) -> str:
    """PYTHONPATH of a process that looks into these folders before those of this one."""
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])


def seconds(command: Sequence[str], exit_codes: Sequence[int] = (0,)) -> float:
    """Wall time of a process.

    Raises:
        ConfigError: it ends with another exit code.
    """
    environment = os.environ | {"PYTHONPATH": python_path(ROOT), "HF_HUB_OFFLINE": "1"}
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    spent = time.perf_counter() - started
    if done.returncode not in exit_codes:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ConfigError(f"{' '.join(command)} ended with {done.returncode}: {reason}")
    return spent


def measure(command: Command, repeats: int) -> dict[str, float]:
    """Median seconds of a command and of its peer, and their ratio."""
    rounds = [
        (seconds(command.command, command.exit_codes), seconds(command.peer)) for _ in range(repeats + 1)
    ]
    ours, peers = (statistics.median(each) for each in zip(*rounds[1:], strict=True))
    return {
        "seconds": round(ours, 2),
        "peer_seconds": round(peers, 2),
        "ratio": round(ours / peers, 2),
        "max_ratio": command.max_ratio,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and store; 0 if every ratio is within its bound, else 1."""
    parser = Parser(prog="python -m tests.performance.bench_startup", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="finished run folder, as of `evalsuite demo`")
    parser.add_argument(
        "--policy", type=Path, default=DEFAULT_POLICY, help="of the gate (default: that of the demo)"
    )
    parser.add_argument("--checkpoint", required=True, help="GGUF file or another checkpoint")
    parser.add_argument("--repeats", type=int, default=5, help="rounds that count (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="folder for startup.json (default: none is written)")
    options = parser.parse_args(arguments)
    found = {}
    for name, command in commands(options.run, options.policy, options.checkpoint).items():
        found[name] = row = measure(command, options.repeats)
        print(
            f"{name:16}{row['seconds']:6.2f} s, imports alone {row['peer_seconds']:.2f} s: "
            f"{row['ratio']:.2f} x (at most {row['max_ratio']:g})"
        )
    if options.out is not None:
        packages = ("pandas", "pyarrow", "torch", "transformers")
        write_json(
            options.out / "startup.json",
            {
                "commands": found,
                "load": round(os.getloadavg()[0], 1),
                "processors": os.cpu_count(),
                "python": platform.python_version(),
                **{name: metadata.version(name) for name in packages},
            },
        )
    return 0 if all(row["ratio"] <= row["max_ratio"] for row in found.values()) else 1


if __name__ == "__main__":
    sys.exit(guarded("bench_startup", main, resumable=False))
