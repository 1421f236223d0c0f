"""The results page of a study: Markdown, CSV tables and a figure, from a scored run folder.

The page of `reports/results/gap-study/` is that of `--page effects`, that of `defects/` of `--page orders`:

    python -m evalsuite.reports.studies.training_choices.page RUN --study study --page orders --out defects

`--page scores` writes the scores of all checkpoints of any run instead, those of `regimes/`.
"""
