"""Run folders: score rows, plans and sidecar files, and reading several runs as one."""
