"""Diagnostics of a checkpoint: numerical consistency, recurrent states."""
