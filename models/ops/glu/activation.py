"""Activations of a gate in Triton, and their derivatives, in fp32.

Both are g · sigmoid(u): silu with u = g, gelu in its approximation by a hyperbolic tangent with
u = 2 √(2 / π) (g + 0.044715 g³) (arXiv 1606.08415).
"""

import triton
import triton.language as tl


@triton.jit
def activate(g, GELU: tl.constexpr):  # type: ignore[no-untyped-def]
    u = g
    if GELU:
        u = 1.5957691216057308 * (g + 0.044715 * g * g * g)
    return g * tl.sigmoid(u)


@triton.jit
def derivative(g, GELU: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of `activate` with respect to g."""
    u, slope = g, 1.0
    if GELU:
        u = 1.5957691216057308 * (g + 0.044715 * g * g * g)
        slope = 1.5957691216057308 * (1 + 0.134145 * g * g)
    s = tl.sigmoid(u)
    return s * (1 + g * (1 - s) * slope)
