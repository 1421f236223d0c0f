"""Maps the top-level rooms into the one namespace `evalsuite`; everything else is in pyproject.toml."""

import sys

from setuptools import find_namespace_packages, setup

ROOMS = ("models", "tasks", "distill", "reports")
# Folders of data (recipes, suites, templates) count as packages, so that what is in them is shipped.
UNSHIPPED = ["*__pycache__*", "results*"]
if "editable_wheel" not in sys.argv:  # studies run from a checkout alone
    UNSHIPPED.append("studies*")


def inside(folder: str, name: str) -> list[str]:
    """The package `name`, which lies in `folder`, and all that is below it."""
    return [name, *(f"{name}.{part}" for part in find_namespace_packages(folder, exclude=UNSHIPPED))]


setup(
    packages=[
        *inside("evalsuite", "evalsuite"),
        *(package for room in ROOMS for package in inside(room, f"evalsuite.{room}")),
    ],
    package_dir={"evalsuite": "evalsuite", **{f"evalsuite.{room}": room for room in ROOMS}},
)
