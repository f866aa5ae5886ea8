"""`assay pull`: download a model and print its path."""

from __future__ import annotations

import argparse

from assay.cli import common
from assay.system.stages import reports

HELP = "download a model and print its path"
EXAMPLE = """
assay pull llama3.2:1b
assay pull hf:Qwen/Qwen3-0.6B-GGUF
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_model_argument(parser)
    parser.add_argument("--list", action="store_true", help="list the models with a name, as `assay search` does")
    common.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from assay.runtime import hub
    from assay.runtime.registry_models import CATALOGUE, pull

    if args.list:
        from assay.cli.search import show_names

        return show_names(args, [])
    name = hub.DEFAULT if args.model is None else args.model
    if name in CATALOGUE:  # a catalogue name: verify the checksum of the local file
        with reports() as tell:
            path = pull(CATALOGUE[name], progress=tell, verify=True)
    else:
        path = common.model_path(args)
    common.emit(args, {"model": name, "path": str(path), "bytes": path.stat().st_size}, str(path))
    return 0
