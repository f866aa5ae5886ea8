"""`assay list`: list the models on this machine under the names that `assay run` takes."""

from __future__ import annotations

import argparse
import time

from assay.cli import common
from assay.cli.style import size, table

HELP = "list the models on this machine"
EXAMPLE = "assay list"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from assay.runtime.local import models

    found = models()
    objects = [
        {"name": m.name, "owner": m.owner, "bytes": m.size, "modified": m.modified, "files": list(map(str, m.files))}
        for m in found
    ]
    rows = [(m.name, size(m.size), time.strftime("%Y-%m-%d", time.localtime(m.modified)), m.owner) for m in found]
    none = "no models on this machine; `assay pull smollm2` downloads one"
    common.emit(args, {"models": objects}, "")
    if not args.json:
        print(table(("NAME", "SIZE", "MODIFIED", "KEPT BY"), rows, right=(1,)) if rows else none)
    return 0
