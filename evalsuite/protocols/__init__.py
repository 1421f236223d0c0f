"""The two protocols: log-likelihood through lm-eval, generation through EvalScope.

Both adapters are thin: the harnesses build prompts and compute metrics, our engine runs in between.
"""
