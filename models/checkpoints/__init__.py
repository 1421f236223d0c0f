"""Checkpoints: where they lie, what they hold, their identity, and loading them."""
