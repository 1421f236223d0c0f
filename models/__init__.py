"""What answers: the recurrence, the mixers, the student, the engine and the pocket teacher."""
