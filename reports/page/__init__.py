"""index.html: the report as one self-contained file without network requests.

Figures are drawn by an inlined bundle of Plotly (vendor/, MIT license) when they scroll into view; each has
a table of its values. Marks inside table cells are inline SVG with positions in percent, which scale from
360 to 2,560 px at a constant font size.
"""
