"""Studies: what measured the results of `reports/results/`, each one command, outside the wheel."""
