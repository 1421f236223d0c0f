"""From score rows to the rows of a report: the source of every table, figure, file and verdict."""
