"""The plain transformers engine: any causal language model, through its own forward pass."""
