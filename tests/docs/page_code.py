"""The code of a documentation page: files that it shows and commands that it runs."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<code>.*?)^```$', re.M | re.S)


class PageCode:
    """A page whose files are written to a folder and whose commands run there."""

    def __init__(self, page: Path, folder: Path) -> None:
        """Write the files of `page`: every code block with a title."""
        blocks = list(BLOCK.finditer(page.read_text()))
        self.folder = folder
        self.files = {block["title"]: block["code"] for block in blocks if block["title"]}
        self.commands = [
            line for block in blocks if block["language"] == "bash" for line in block["code"].splitlines()
        ]
        for name, code in self.files.items():
            (folder / name).write_text(code)

    @property
    def example(self) -> str:
        """The first Python file."""
        return next(code for name, code in self.files.items() if name.endswith(".py"))

    def run(self) -> str:
        """Run all commands in order; returns what they printed. A command that fails fails the test."""
        return "".join(self.call(line) for line in self.commands)

    def call(self, line: str, *, code: int = 0) -> str:
        """Run one command as a shell would, with packages installed below the folder."""
        words = shlex.split(line, comments=True)
        if words[:2] == ["pip", "install"]:
            words = [
                "-m",
                *words[:2],
                "--quiet",
                "--no-deps",
                "--no-build-isolation",
                "--target",
                "site",
                *words[2:],
            ]
        elif words[0] == "evalsuite":
            words = ["-m", *words]
        else:
            assert words[0] == "python", line
            words = words[1:]
        path = os.pathsep.join((str(self.folder / "site"), str(self.folder), str(ROOT)))
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout
