"""Probe the recurrent states of students while they read haystacks with a needle."""
