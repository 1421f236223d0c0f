"""Training questions in the prompts of the suite `generator`, made from training data alone.

    python -m evalsuite.distill.data.questions --data DIR --out DIR

reads instruction data and corpora from ``DIR/instruct`` and ``DIR/corpora`` and writes one ``.jsonl.zst`` of
conversations per kind of question, and ``plain.jsonl.zst`` with prompts of the log-likelihood protocol. The
recipe `generator` reads them, and `decontamination` compares them with the evaluated documents.
"""
