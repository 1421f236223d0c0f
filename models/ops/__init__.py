"""Triton kernels for training on CUDA: each reads and writes its tensors once.

In plain torch these operations are chains of elementwise passes over all activations. Every module except
`apply` imports triton, so callers import it lazily, once `use_triton` has returned true.
"""
