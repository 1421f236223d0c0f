"""From a panel of answers to the rows that every table, figure, file and verdict is made of."""
