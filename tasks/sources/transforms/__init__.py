"""Row transforms, for benchmarks whose questions are not single rows of their dataset.

A transform is a function from rows to rows, and one `TRANSFORMS.add`; every module of this folder is imported
and registers its own. Other packages add transforms in the entry-point group `evalsuite.transforms`.
"""

from evalsuite.foundation.registry import import_submodules
from evalsuite.tasks.sources.transforms.base import TRANSFORMS, Transform

import_submodules(__name__, __path__)

__all__ = ["TRANSFORMS", "Transform"]
