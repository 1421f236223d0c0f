"""What a run takes of the GPU and of time, and optimizer states that take less."""
