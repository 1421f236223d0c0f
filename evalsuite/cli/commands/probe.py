"""`evalsuite probe`: what recurrent states hold while a needle is read."""

import argparse
from pathlib import Path

from evalsuite.cli.options import add_data_option, add_model_options, add_quiet
from evalsuite.foundation import counted
from evalsuite.foundation.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = command(
        commands,
        "probe",
        help="measure decay, writes, norm and rank of students' states, and what they hold of a needle",
        example=(
            "  evalsuite probe ./gla ./kda --out runs/first --lengths 512 2048\n"
            "  evalsuite probe runs/demo/students/gla --out runs/demo --benchmark pocket_niah_single_2"
        ),
    )
    parser.add_argument(
        "checkpoints",
        nargs="+",
        metavar="CHECKPOINT",
        help="students with recurrent layers, or folders of them",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="RUN", help="run folder; probes.parquet is written there"
    )
    parser.add_argument(
        "--benchmark",
        default="niah_single_1",
        metavar="NAME",
        help="needle benchmark whose documents are read (default: %(default)s, which needs no data)",
    )
    parser.add_argument(
        "--lengths",
        nargs="+",
        type=int,
        default=[512],
        metavar="T",
        help="lengths in tokens of a prompt and its answer (default: 512)",
    )
    parser.add_argument(
        "--depths",
        nargs="+",
        type=float,
        default=[0.0, 25.0, 50.0, 75.0, 100.0],
        metavar="PERCENT",
        help="bounds of the ranges of depths at which needles lie (default: 0 25 50 75 100)",
    )
    parser.add_argument(
        "--documents",
        type=int,
        default=10,
        metavar="N",
        help="documents of each length and range of depths (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the documents (default: %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="print what would be read, and write nothing")
    add_model_options(parser)
    add_data_option(parser)
    add_quiet(parser)
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Probe, and print how much of the needle every student holds."""
    from evalsuite.evaluation.probes.measure import measure_probes, plan_probes
    from evalsuite.reports.records.probes import FILE

    where = {
        "device": arguments.device,
        "dtype": arguments.dtype,
        "trust_remote_code": arguments.trust_remote_code,
    }
    work = plan_probes(
        arguments.out,
        arguments.checkpoints,
        arguments.benchmark,
        arguments.lengths,
        depths=arguments.depths,
        documents=arguments.documents,
        seed=arguments.seed,
        data_dir=arguments.data,
        **where,
    )
    if arguments.dry_run:
        for each in work:
            documents = counted(len(each.haystacks), "document")
            print(f"{each.checkpoint.label} at {each.context} tokens: {documents}, {each.tokens:,} tokens")
        print("nothing was written" if work else f"nothing to do: {arguments.out / FILE} has these documents")
        return 0
    if not work:
        print(f"nothing to do: {arguments.out / FILE} has these documents")
        return 0
    frame = measure_probes(arguments.out, work, quiet=arguments.quiet, **where)
    labels = {each.checkpoint.weights_id: each.checkpoint.label for each in work}
    question = frame[frame["segment"] == "question"]
    for (weights_id, context), rows in question.groupby(["weights_id", "context"], sort=False):
        answers = rows.drop_duplicates("doc_id")
        found = (answers["answer_right"] == answers["answer_tokens"]).sum()
        held = 100 * rows["retained"].mean()
        best = 100 * rows.groupby(["layer", "head"])["readout"].mean().max()
        print(
            f"{labels[str(weights_id)]} at {context} tokens: {found} of {len(answers)} needles found, "
            f"{held:.1f} % of the value's writes retained, {best:.1f} % of the best head's readout"
        )
        if others := sorted(set(rows[rows["norm"].isna()]["layer"])):
            print(f"  layers {', '.join(map(str, others))}: softmax, attention mass only")
    print(f"written to {arguments.out / FILE}; `evalsuite compare {arguments.out}` shows it")
    return 0
