"""Training data: sources, chat rendering, tokenization, packing, mixtures and batches."""
