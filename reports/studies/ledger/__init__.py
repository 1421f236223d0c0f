"""A ledger of linearized models: what their printed scores say about recovery, recall and generation."""
