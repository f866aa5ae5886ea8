"""`assay check`: is this engine right on this model? One command, exit 0 or 1."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from assay.cli.common import add_json_argument, add_model_argument, emit, open_model, token_ids
from assay.cli.trace import add_run_arguments, counting
from assay.errors import AssayError

HELP = "hold an engine against the definition: every node, several lengths, prefill and decode"
EXAMPLE = """\
assay check smollm2 --engine cpu
assay check smollm2 --engine llamacpp --lengths 1,5"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    add_run_arguments(parser, "cpu")
    parser.add_argument("--lengths", type=token_ids, metavar="N,…", help="tokens of each run; default: 1,2,7,33")
    parser.add_argument(
        "--html", metavar="FILE", help="also write the page of the first check that fails, else the last"
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from assay.engines.base import PAGE
    from assay.verify.conformance.check import LENGTHS, check_engine
    from assay.verify.conformance.sample import TEXT
    from assay.verify.judge.text import text
    from assay.verify.witness import open_engine

    lengths = tuple(args.lengths or LENGTHS)
    if min(lengths) < 1:
        raise AssayError(f"--lengths: must be 1 or more (found {min(lengths)})")
    _file, model, tokenizer = open_model(args)
    tokens = tokenizer.encode(TEXT)[: max(lengths)]
    pages = -(-max(lengths) // PAGE)
    options = {"precision": args.precision, "threads": args.threads, "kv_type": args.kv_type}
    done = []
    with counting("checking") as progress:
        checks = check_engine(
            lambda: open_engine(args.engine, model, n_pages=pages, **options), model, tokens, lengths, progress
        )
        page = None
        for check in checks:
            done.append(replace(check, dump=None))
            if check.diff is not None and check.dump is not None and (page is None or page.passed):
                page = check if args.html else None
            if not args.json:
                print(f"{'pass' if check.passed else 'FAIL'}  {check.name}: {check.detail}", flush=True)
    if page is not None and page.dump is not None:
        from assay.verify.report import write_html

        write_html(Path(args.html), model, page.dump, page.diff)
    failed = [c for c in done if not c.passed]
    obj = {
        "model": str(model.file.path),
        "engine": args.engine,
        "verdict": "wrong" if failed else "right",
        "checks": [c.to_json() for c in done],
    }
    first = next((c.diff for c in failed if c.diff is not None), None)
    closing = f"\n{text(first, model)}" if first is not None else ""
    emit(args, obj, f"{len(done) - len(failed)} of {len(done)} checks passed{closing}")
    return 1 if failed else 0
