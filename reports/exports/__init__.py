"""Exports of a report: CSV, Markdown, terminal text, JSON, redaction, and samples as parquet."""
