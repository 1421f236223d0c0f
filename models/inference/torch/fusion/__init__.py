"""Modules of a model in fewer kernels, for inference on a GPU; each is proven or left alone."""
