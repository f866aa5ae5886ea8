"""`assay search`: list the names that MODEL may be, with sizes, and which are on this machine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from assay.cli import common
from assay.cli.style import size, table
from assay.errors import AssayError

if TYPE_CHECKING:
    from assay.runtime.model_names import NamedModel

HELP = "find a model by name, family, purpose or size"
EXAMPLE = """
assay search qwen3
assay search code           # by purpose; also embed, reasoning, vectors, apache
assay search                # all of them
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="WORD", help="show models whose line has every WORD; none: all")
    common.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    return show_names(args, args.words)


def show_names(args: argparse.Namespace, words: list[str]) -> int:
    """Print the models that match all words."""
    from assay.runtime.local import models
    from assay.runtime.model_names import search_names, suggestions

    found = search_names(words)
    if not found:
        near = ", ".join(suggestions(" ".join(words)))
        raise AssayError(
            f"{' '.join(words):.60}: no known model has that in its name or description; near: {near}; any GGUF "
            "repository of the hub works as hf:owner/repo"
        )
    here = {local.name: local for local in models()}
    objects = [_object(model, model.name in here) for model in found]
    common.emit(args, {"models": objects}, "")
    if not args.json:
        print(_text(found, set(here)))
    return 0


def _object(model: NamedModel, is_here: bool) -> dict[str, object]:
    return {
        "name": model.name,
        "tag": model.tag,
        "about": model.about,
        "parameters": model.parameters,
        "bytes": model.size,
        "source": model.source,
        "architecture": model.architecture,
        "supported": model.is_supported,
        "licence": model.licence,
        "here": is_here,
    }


def _text(found: list[NamedModel], here: set[str]) -> str:
    rows = [
        (
            model.name,
            f"{model.size / 1e6:.0f} MB" if model.size < 1e9 else size(model.size),  # the table is rounded
            model.parameters,
            "here" if model.name in here else "-" if model.is_supported else "no",
            model.about if model.is_supported else f"{model.about} (architecture {model.architecture}: not supported)",
        )
        for model in found
    ]
    head = ("NAME", "SIZE", "PARAMETERS", "HERE", "ABOUT")
    return f"{table(head, rows, right=(1,))}\n`assay run NAME` downloads a model once and runs it"
