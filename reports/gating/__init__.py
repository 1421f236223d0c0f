"""The gate: a policy, measured on the records of a run, decided on intervals."""
