"""The results page of a study: Markdown, CSV tables and a figure, from a scored run folder.

python -m evalsuite.reports.exports.gap_study RUN --study study --out reports/results/gap-study/pocket-10m
python -m evalsuite.reports.exports.gap_study RUN --study defects --page orders --out reports/results/defects
"""
