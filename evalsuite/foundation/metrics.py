"""Metrics that are stored as losses: named by tasks, recorded by protocols, aggregated by reports."""

PERPLEXITIES: dict[str, str | None] = {
    "perplexity": None,
    "word_perplexity": "words",
    "byte_perplexity": "bytes",
}
"""Each is recorded as the document's negative log-likelihood in nats (lower is better) and reported as the
mean over the named units; None counts each document once."""
