"""Comparison of layer selectors: one recipe and one suite for the layers of every selector."""
