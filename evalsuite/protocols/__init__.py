"""The two ways of asking: ranking log-likelihoods through lm-eval, writing answers through EvalScope.

Both are thin: the harnesses make the prompts and the metrics, the engine answers in between.
"""
