"""Triton kernels for passes without gradients, which see another shape in every batch.

None is autotuned or compiled for single sizes of a batch. `policy.inference_kernels` chooses them, on each
device and dtype on which a module proves right (`proof`).
"""
