"""`evalsuite distance`: how far students are from their teacher, and the scale of rounded teachers."""

import argparse
from pathlib import Path

from evalsuite.cli.options import add_model_options, add_quiet
from evalsuite.foundation.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = command(
        commands,
        "distance",
        help="measure KL divergence and top-1 agreement of students with their teacher on a run's documents",
        example=(
            "  evalsuite distance ./gla ./kda --teacher ./teacher --out runs/first --yardstick\n"
            "  evalsuite distance ./gla --teacher ./teacher --out runs/first --text held-out=books.jsonl\n"
            "  evalsuite distance --teacher pocket --out runs/demo --yardstick"
        ),
    )
    parser.add_argument("checkpoints", nargs="*", metavar="CHECKPOINT", help="students; variants as in `run`")
    parser.add_argument("--teacher", required=True, metavar="PATH", help="the teacher that the run evaluated")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="RUN",
        help="run folder: its right answers are compared at, and distances.parquet is written there",
    )
    parser.add_argument(
        "--text",
        nargs="+",
        dest="texts",
        default=[],
        metavar="NAME=FILE",
        help="held-out text: .jsonl with a 'text' a line, or a file that is one document",
    )
    parser.add_argument(
        "--yardstick",
        action="store_true",
        help="also measure the teacher rounded to 8, 6, 5, 4, 3 and 2 bits; students are placed among these",
    )
    add_model_options(parser)
    add_quiet(parser)
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, and print the distances at the answers."""
    from evalsuite.evaluation.distances.measure import measure_distances
    from evalsuite.reports.records.distances import FILE

    frame = measure_distances(
        arguments.out,
        arguments.checkpoints,
        arguments.teacher,
        texts=arguments.texts,
        yardstick=arguments.yardstick,
        device=arguments.device,
        dtype=arguments.dtype,
        trust_remote_code=arguments.trust_remote_code,
        quiet=arguments.quiet,
    )
    frame = frame.assign(bits=frame["bits"].fillna(0))
    sums = frame.groupby(["text", "weights_id", "bits"], sort=False)[["kl", "agreement", "tokens"]].sum()
    for row in sums.reset_index().to_dict("records"):
        text, weights_id, bits = row["text"], row["weights_id"], row["bits"]
        name = f"{bits}-bit" if bits else weights_id
        share = 100 * row["agreement"] / row["tokens"]
        print(f"{text}: {name}: KL {row['kl'] / row['tokens']:.4f} nats per token, top-1 {share:.1f} %")
    print(f"written to {arguments.out / FILE}; `evalsuite compare {arguments.out}` shows it")
    return 0
