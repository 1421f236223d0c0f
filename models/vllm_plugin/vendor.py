"""Make this evalsuite importable in a vLLM environment that does not have it."""

from pathlib import Path

import evalsuite

ENTRY_POINT = "evalsuite.models.vllm_plugin:register"
"""The entry point of pyproject.toml, for environments in which evalsuite is not installed."""


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
