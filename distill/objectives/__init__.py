"""Training objectives: layerwise distances to the teacher, and end-to-end losses on the model's output.

`layerwise` and `end_to_end` define the objectives and need no torch; the other modules compute their losses.
"""

from evalsuite.distill.objectives import end_to_end, layerwise

__all__ = ["end_to_end", "layerwise"]
