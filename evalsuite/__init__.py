"""evalsuite: what was lost when a Transformer became a linear-attention or hybrid model?

The rooms `models`, `tasks`, `distill` and `reports` are subpackages of this namespace. A wheel and an
editable install put them in place; run from a checkout that is not installed (a GPU host), they lie
next to this folder, and the path below lets the import system look there.
"""

from pathlib import Path

__version__ = "0.1.0"

_HERE = Path(__file__).resolve().parent
if not (_HERE / "models").is_dir() and (_HERE.parent / "models" / "__init__.py").is_file():
    __path__.append(str(_HERE.parent))
