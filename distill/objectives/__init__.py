"""Training objectives: layerwise distances to the teacher, and end-to-end losses."""
