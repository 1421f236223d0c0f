"""index.html: the report as one file that opens from a mail attachment.

Figures are SVG written here rather than plotly's: positions are percentages, so that a figure stretches from
360 to 2,560 px while its letters keep their size; each has a name for screen readers, needs no script, and
prints. A page stays near half a megabyte, where plotly's whole bundle alone is 4.5 MB and its basic one 1 MB.
"""
