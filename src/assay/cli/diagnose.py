"""`assay diagnose`: which operation is wrong, which known mistake gives these values, and what is right."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.cli.common import add_json_argument, add_model_argument, emit, opened, say, text_argument, token_ids
from assay.cli.spread import add_cluster_argument
from assay.errors import AssayError

if TYPE_CHECKING:
    from assay.runtime.opening import Opened
    from assay.verify.diagnosis.candidates import Share

HELP = "name the bug in somebody's engine, from its dump or over HTTP"
EXAMPLE = """assay diagnose smollm2 dump.jsonl
assay diagnose smollm2 dump.npz -p "The capital of France is" --html report.html
assay diagnose smollm2 --endpoint http://localhost:8080"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    parser.add_argument(
        "dump", nargs="?", metavar="DUMP", help="what the engine printed or saved; docs/reference/dump-format.md"
    )
    parser.add_argument("--endpoint", metavar="URL", help="ask an OpenAI-compatible server instead")
    parser.add_argument("-p", "--prompt", type=text_argument, metavar="TEXT", help="the text that the ids stand for")
    parser.add_argument("--chat", action="store_true", help="the text is a user's message under the chat template")
    parser.add_argument("--system", type=text_argument, metavar="TEXT", help="with a system message before it")
    parser.add_argument("--tokens", type=token_ids, default=[], metavar="IDS", help="the ids, if the dump lacks them")
    parser.add_argument("--map", metavar="FILE", help="JSON object from the dump's names to nodes")
    parser.add_argument(
        "--pattern", action="append", default=[], metavar="P", help="of log lines; docs/reference/dump-format.md"
    )
    parser.add_argument("--side", default="", metavar="NAME", help="whose values, where a log shows several engines'")
    parser.add_argument("--html", metavar="FILE", help="also write one self-contained page")
    parser.add_argument("--api-key", default="", metavar="KEY", help="sent to the endpoint as a bearer token")
    parser.add_argument("--api-model", default="", metavar="NAME", help="the endpoint's name for the model")
    add_cluster_argument(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    if args.endpoint is not None:
        if args.dump is not None:
            raise AssayError("--endpoint asks a server; it does not go with a DUMP")
        return _answer(args, endpoint=args.endpoint, api_key=args.api_key, api_model=args.api_model)
    if args.dump is None:
        if args.model is not None and Path(args.model).suffix in (".jsonl", ".npz", ".safetensors", ".log", ".txt"):
            args.model, args.dump = None, args.model
        else:
            raise AssayError("no DUMP given and no --endpoint; see `assay diagnose --help`")
    from assay.verify.dumps.load import read_map

    names = read_map(Path(args.map)) if args.map else None
    return _answer(
        args, values=args.dump, tokens=args.tokens, names=names, patterns=args.pattern, side=args.side,
        prompt=args.prompt, chat=args.chat, system=args.system,
    )  # fmt: skip


def _answer(args: argparse.Namespace, **evidence: Any) -> int:
    from assay.library.verdicts import diagnose

    on = opened(args)
    share = _elsewhere(args, on, evidence) if args.cluster is not None and args.dump is not None else None
    found = diagnose(on, progress=say, share=share, **evidence)
    if args.html:
        found.save_html(args.html)
    emit(args, found.to_dict(), lambda: repr(found))
    return 0 if found else 1


def _elsewhere(args: argparse.Namespace, on: Opened, evidence: dict[str, Any]) -> Share:
    """Where a hypothesis costs a run of the model, the workers of a cluster try them."""
    from assay.cli import spread
    from assay.cluster import sweep, tasks

    if args.dump == "-":
        raise AssayError("--cluster: workers read the dump themselves; give a file instead of -")
    asked = {key: evidence[key] for key in ("tokens", "names", "patterns", "side")}
    return tasks.shared_trials(on, Path(args.dump), asked, spread.crew(args), sweep.folder(args.results), spread.bar())
