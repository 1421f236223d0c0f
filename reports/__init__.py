"""What is written down and what it means: records, statistics, leaderboards, the gate and the page."""
