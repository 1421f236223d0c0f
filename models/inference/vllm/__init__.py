"""The vLLM engine: client, subprocess and worker."""
