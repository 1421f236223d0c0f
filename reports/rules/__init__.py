"""What a rule of the gate is measured on: the rule, the cells that it selects, and the measured quantity."""
