"""index.html: the report as one self-contained file without network requests.

Figures are inline SVG with positions in percent: they scale from 360 to 2,560 px at a constant font size,
have a label for screen readers, need no JavaScript and print.
"""
