"""Take the plugin along to an environment of vLLM that has nothing of ours."""

from pathlib import Path

import evalsuite

ENTRY_POINT = "evalsuite.models.vllm_plugin:register"
"""The same line as in pyproject.toml, for an environment in which evalsuite is not installed."""


def ship(folder: Path) -> Path:
    """Make `folder` a place that, put on PYTHONPATH, holds this very evalsuite and its entry point.

    A served student then runs the code that made it, whatever version the environment may have, and the
    environment needs nothing but vLLM.
    """
    (folder / "evalsuite").symlink_to(Path(evalsuite.__file__).resolve().parent, target_is_directory=True)
    facts = folder / f"evalsuite-{evalsuite.__version__}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: evalsuite\nVersion: {evalsuite.__version__}\n"
    )
    (facts / "entry_points.txt").write_text(f"[vllm.general_plugins]\nevalsuite = {ENTRY_POINT}\n")
    return folder
