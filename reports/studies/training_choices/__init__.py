r"""Run a study: distil every run of its design and compute its responses, several at a time.

    python -m evalsuite.reports.studies.training_choices gap-study-pocket-10m --teacher ./teacher \
        --requests runs/requests --out study

The folder of --requests is a run of the study's suite whose requests are built (`evalsuite run SUITE
--build-only`) for the tokenizer of the teacher. Repeating the command resumes: finished runs are skipped,
interrupted trainings continue. A second command with the same --out joins: no job runs twice. Every process
sees one GPU; CUDA_VISIBLE_DEVICES names those to use. Below --out lie

    shards/NAME.tar.xz      responses and loss curves, for `evalsuite run --score-only --merge-shards`
    exposure/NAME.jsonl     see `evalsuite.reports.studies.training_choices.exposure`
    students/NAME           checkpoints
    study.json, runs.jsonl  the design; end, duration and GPU of every run
    locks/NAME              held by the process that has the job
"""
