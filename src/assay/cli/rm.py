"""`assay rm`: delete a model that assay downloaded."""

from __future__ import annotations

import argparse

from assay.cli import common
from assay.cli.style import size

HELP = "delete a downloaded model"
EXAMPLE = "assay rm tinyllama"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="+", metavar="NAME", help="name of a model in `assay list`")
    common.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from assay.runtime.local import Local, models, remove

    sizes = {model.name: model.size for model in models()}
    gone: list[Local] = [remove(name) for name in args.models]
    freed = sum(sizes[model.name] for model in gone)
    text = f"deleted {', '.join(model.name for model in gone)}; {size(freed)} freed"
    common.emit(args, {"deleted": [model.name for model in gone], "bytes": freed}, text)
    return 0
