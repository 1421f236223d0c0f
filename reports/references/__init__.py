"""Figures printed in papers, and their loader."""
