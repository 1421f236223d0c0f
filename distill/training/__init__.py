"""The training core: models, optimizer steps, checkpoints, metrics and cost estimates."""
