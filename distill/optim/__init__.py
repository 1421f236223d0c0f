"""Learning-rate schedules and optimizers: settings, behaviour and memory of each in one class."""
