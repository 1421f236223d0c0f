"""index.html: the report as one file that opens from a mail attachment."""
