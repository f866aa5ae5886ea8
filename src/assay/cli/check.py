"""`assay check`: test whether an engine computes a model correctly; exit code 0 or 1."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.cli.cluster_options import add_cluster_argument
from assay.cli.common import (
    add_json_argument,
    add_mmproj_argument,
    add_model_argument,
    emit,
    opened,
    text_argument,
)
from assay.cli.number_types import lengths
from assay.cli.trace import add_run_arguments
from assay.errors import AssayError
from assay.system.terminal import harmless

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.runtime.opening import Opened
    from assay.verify.conformance.engine_check import Check

HELP = "compare an engine with the definition: every node, several lengths, prefill and decode"
EXAMPLE = """\
assay check smollm2 --engine cpu
assay check smollm2 --engine tinygrad --lengths 1,5
assay check gemma-3-4b.gguf --engine llamacpp --image cat.png   # pictures: the tower, and a prompt that has them"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    add_run_arguments(parser, "cpu")
    parser.add_argument(
        "--lengths", type=lengths, metavar="N,…", help="prompt lengths in tokens, one run each; default: 1,2,7,33"
    )
    parser.add_argument(
        "--html", metavar="FILE", help="also write a page about the first check that fails, else the last one"
    )
    parser.add_argument(
        "--image", action="append", default=[], metavar="FILE",
        help="check the vision tower and a prompt with this picture instead of prompts of text; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "-p", "--prompt", type=text_argument, metavar="TEXT", help="--image: the prompt, with <__media__> for a picture"
    )
    add_mmproj_argument(parser)
    add_cluster_argument(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from assay.library.verdicts import checks, verdict_of
    from assay.verify.report import write_html

    on = opened(args)
    options = {"precision": args.precision, "threads": args.threads, "kv_type": args.kv_type, "tier": args.tier}
    if args.cluster is not None and not args.image and _passes_on_cluster(args, on, options):
        return 0
    done = []
    page = None
    if args.image:
        found_checks = _with_pictures(args, on, options)
    elif args.prompt is not None:
        raise AssayError("-p: is a prompt for pictures; name them with --image FILE")
    else:
        found_checks = checks(on, args.engine, lengths=args.lengths or (), **options)
    for check in found_checks:
        done.append(replace(check, dump=None))
        if check.diff is not None and check.dump is not None and (page is None or page.passed):
            page = check if args.html else None
        if not args.json:
            print(f"{'pass' if check.passed else 'FAIL'}  {check.name}: {harmless(check.detail)}", flush=True)
    if page is not None and page.dump is not None:
        write_html(Path(args.html), on.model, page.dump, page.diff)
    found = verdict_of(on.model, done)
    summary = repr(found).split("\n", len(done))[-1]  # the checks are already printed
    emit(args, {"model": str(on.file.path), "engine": args.engine} | found.to_dict(), summary)
    return 0 if found else 1


def _with_pictures(args: argparse.Namespace, on: Opened, options: dict[str, Any]) -> Iterator[Check]:
    from assay.library.picture_checks import picture_checks

    if args.lengths or args.cluster is not None:
        raise AssayError("--image: checks one prompt on this machine; leave --lengths and --cluster out")
    return picture_checks(on, args.engine, args.image, args.prompt, mmproj=args.mmproj, **options)


def _passes_on_cluster(args: argparse.Namespace, on: Opened, options: dict[str, Any]) -> bool:
    """Run the checks on a cluster, one task per length. If one fails, the caller repeats them here for the report."""
    from assay.cli import cluster_options as on_cluster
    from assay.cluster import sweep, tasks
    from assay.library.verdicts import verdict_of
    from assay.verify.conformance.engine_check import Check, lengths_for

    lengths = args.lengths or lengths_for(on.model)
    where = sweep.folder(args.results)
    rows = tasks.check(
        on, args.engine, lengths, options, on_cluster.worker_pool(args), where, on_cluster.sweep_progress()
    )
    if args.html or not all(passed for _, passed, _ in rows):
        return False
    done = [Check(*row) for row in rows]
    found = verdict_of(on.model, done)
    emit(args, {"model": str(on.file.path), "engine": args.engine} | found.to_dict(), repr(found))
    return True
