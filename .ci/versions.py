"""Requirements at the ends of what pyproject.toml admits, one a line.

python .ci/versions.py oldest    requirements: the first minor version that each lower bound admits
python .ci/versions.py newest    names of what has a bound, for an upgrade beyond the upper ones
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
BOUND = re.compile(r"(?P<name>[\w-]+)(\[\w+\])?>=(?P<major>\d+)(\.(?P<minor>\d+))?")


def requirements(end: str) -> Iterator[str]:
    """Of what the product runs on: the base install and `models`."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    for requirement in project["dependencies"] + project["optional-dependencies"]["models"]:
        if (found := BOUND.match(requirement)) is not None:
            version = f"=={found['major']}.{found['minor'] or 0}.*"
            yield found["name"] + (version if end == "oldest" else "")


if __name__ == "__main__":
    print(*requirements(sys.argv[1]), sep="\n")
