"""What a student lost: agreement, retained answers, informative recovery, recall, tolerance and distance."""
