"""The command line as Markdown, from its parsers."""

import argparse

from evalsuite.cli.entry import build_parser
from evalsuite.foundation.parser import Parser


def reference() -> str:
    """Return one section for each command, and one for each of its subjects."""
    return "\n\n".join(
        section(parser, "##" if parser.prog.count(" ") == 1 else "###")
        for parser in parsers(build_parser())[1:]
    )


def parsers(parser: Parser) -> list[Parser]:
    """Return a parser and those of its commands, depth first."""
    inner = [
        each
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for command in action.choices.values()
        for each in parsers(command)
    ]
    return [parser.completed(), *inner]


def section(parser: argparse.ArgumentParser, heading: str) -> str:
    """Return description, usage, example and options of a command."""
    parts = [f"{heading} {parser.prog.removeprefix('evalsuite ')}", parser.description or ""]
    example = (parser.epilog or "").removeprefix("example:").strip("\n")
    if example:
        parts.append("```\n" + "\n".join(line.removeprefix("  ") for line in example.splitlines()) + "\n```")
    rows = [
        f"| {name(action)} | {text(parser, action)} |"
        for action in parser._actions
        if not isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
    ]
    if rows:
        parts.append("\n".join(("| argument | meaning |", "|---|---|", *rows)))
    return "\n\n".join(part for part in parts if part)


def name(action: argparse.Action) -> str:
    """Return an option with its value, or a positional argument, as the usage line writes it."""
    formatter = argparse.HelpFormatter("evalsuite")
    usage = formatter._format_action_invocation(action)
    return ", ".join(f"`{part}`" for part in usage.split(", ")).replace("|", "\\|")


def text(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return an option's help with its values filled in, and whether it is required."""
    shown = argparse.HelpFormatter(parser.prog)._expand_help(action) if action.help else ""
    required = "required; " if action.required and action.option_strings else ""
    return (required + " ".join(shown.split())).replace("|", "\\|")
