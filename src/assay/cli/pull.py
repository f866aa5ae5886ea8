"""`assay pull`: download a model and print its path."""

from __future__ import annotations

import argparse

from assay.cli import common
from assay.cli.progress import progress

HELP = "download a model and print its path"
EXAMPLE = """
assay pull smollm2
assay pull --list
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_model_argument(parser)
    parser.add_argument(
        "--list", action="store_true", help="list the models of the catalogue, and whether they are downloaded"
    )
    common.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from assay.runtime import hub
    from assay.runtime.registry_models import CATALOGUE, cached, pull

    if args.list:
        rows = [(entry, cached(entry), cached(entry).is_file()) for entry in CATALOGUE.values()]
        models = [
            {"name": e.name, "about": e.about, "bytes": e.size, "path": str(path), "here": here}
            for e, path, here in rows
        ]
        lines = [f"{e.name:<10} {e.size / 1e6:>5.0f} MB  {'here' if here else '-':<5} {e.about}" for e, _, here in rows]
        common.emit(args, {"models": models}, "\n".join(lines))
        return 0
    name = args.model or hub.DEFAULT
    if name in CATALOGUE:  # a catalogue name: verify the checksum of the local file
        with progress() as bar:
            path = pull(CATALOGUE[name], progress=bar, verify=True)
    else:
        path = common.model_path(args)
    common.emit(args, {"model": name, "path": str(path), "bytes": path.stat().st_size}, str(path))
    return 0
