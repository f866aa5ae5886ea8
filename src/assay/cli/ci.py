"""`assay ci`: run an engine's dump command on the models of a TOML file, judge them, and write the report."""

from __future__ import annotations

import argparse
from pathlib import Path

from assay.cli.common import add_json_argument, emit, say
from assay.system.terminal import harmless

HELP = "check an engine on every commit, from a TOML file; write the report"
EXAMPLE = """\
assay ci                                # reads assay.toml, writes assay-report/; exit 0: right, 1: wrong
assay ci engine/assay.toml --report out # out/report.json, out/comment.md, out/MODEL.html"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", default="assay.toml", metavar="FILE",
        help="TOML file with [engine] and [[model]]; default: assay.toml; see docs/howto/engine-ci.md",
    )  # fmt: skip
    parser.add_argument("--report", default="assay-report", metavar="FOLDER",
                        help="folder for report.json, comment.md and a page for each model")  # fmt: skip
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from assay.library.engine_ci import check_models, comment, read_config, write_report

    config = read_config(Path(args.file))
    results = []
    for result in check_models(config):
        results.append(result)
        say(f"{'pass' if result.passed else 'FAIL'}  {result.title}: {result.words} ({result.seconds:.1f} s)")
        if not result.passed:
            say(harmless(result.detail))
    made = write_report(Path(args.report), config, results)
    say(f"report: {', '.join(map(str, made))}")
    passed = all(result.passed for result in results)
    emit(
        args,
        {"engine": config.engine, "passed": passed, "models": [r.to_dict() for r in results]},
        comment(config, results) if not args.json else "",
    )
    return 0 if passed else 1
