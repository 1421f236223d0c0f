"""Sections of the page: each module turns a report into what its part of the template shows."""
