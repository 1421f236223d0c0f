"""What observes training: metrics, divergence, validation and intermediate checkpoints."""
