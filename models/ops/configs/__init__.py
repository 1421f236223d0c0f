"""Launch configurations of Triton kernels: candidates, and files of those that were measured."""
