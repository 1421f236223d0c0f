"""The selectors; every module of this folder is imported, and registers its own."""

from evalsuite.foundation.registry import import_submodules

import_submodules(__name__, __path__)
