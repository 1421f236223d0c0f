"""One-swap selection: a layer's score is that of a briefly trained student with this layer alone swapped."""
