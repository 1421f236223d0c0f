"""Studies of training choices: effects under both protocols, and where the gap comes from.

Pure functions over arrays of scores; `reports/exports/gap_study.py` reads files and writes the page.
"""
