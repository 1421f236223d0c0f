"""Published leaderboards and gaps, computed a second time from the stored scores by other code."""
