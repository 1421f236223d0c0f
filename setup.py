"""Maps the top-level rooms into the one namespace `evalsuite`; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

ROOMS = ("models", "tasks", "distill", "reports")

packages = ["evalsuite", *(f"evalsuite.{name}" for name in find_packages("evalsuite"))]
for room in ROOMS:
    packages += [f"evalsuite.{room}", *(f"evalsuite.{room}.{name}" for name in find_packages(room))]

setup(
    packages=packages,
    package_dir={"evalsuite": "evalsuite", **{f"evalsuite.{room}": room for room in ROOMS}},
)
