"""Operations of models: each a folder with its reference in plain torch and its Triton kernels.

`__init__.py` declares the op: its reference, where each kernel applies, and the samples of its proof (see
`dispatch`). `training.py` holds kernels with gradients, `inference.py` those for passes without, which see
another shape in every batch; both need Triton and are imported when they are first chosen.
"""
