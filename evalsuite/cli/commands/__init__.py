"""One module per command: its options, and the call that it makes."""
