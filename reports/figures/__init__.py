"""Figures: specifications for Plotly, charts of the usual kinds, and marks in the rows of a table."""
