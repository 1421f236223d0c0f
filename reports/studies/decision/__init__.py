"""Does log-likelihood hide what generation and recall lose? A study of two teachers.

`protocol.yaml`, committed before the first run, says what is measured, compared and concluded; `piece` trains
and evaluates the students of one teacher and seed; `effects` and `choice` compute the contrasts, and what a
choice by each measure would have cost.
"""
