"""`assay diagnose`: which operation is wrong, which known mistake gives these values, and what is right."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from assay.cli.common import add_json_argument, add_model_argument, emit, open_model, text_argument, token_ids
from assay.errors import AssayError

HELP = "name the bug in somebody's engine, from its dump or over HTTP"
EXAMPLE = """assay diagnose smollm2 dump.jsonl
assay diagnose smollm2 dump.npz -p "The capital of France is" --html report.html
assay diagnose smollm2 --endpoint http://localhost:8080"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    parser.add_argument("dump", nargs="?", metavar="DUMP", help="what the engine printed or saved; docs/dump-format.md")
    parser.add_argument("--endpoint", metavar="URL", help="ask an OpenAI-compatible server instead")
    parser.add_argument("-p", "--prompt", type=text_argument, metavar="TEXT", help="the text that the ids stand for")
    parser.add_argument("--chat", action="store_true", help="the text is a user's message under the chat template")
    parser.add_argument("--system", type=text_argument, metavar="TEXT", help="with a system message before it")
    parser.add_argument("--tokens", type=token_ids, default=[], metavar="IDS", help="the ids, if the dump lacks them")
    parser.add_argument("--map", metavar="FILE", help="JSON object from the dump's names to nodes")
    parser.add_argument("--pattern", action="append", default=[], metavar="P", help="of log lines; docs/dump-format.md")
    parser.add_argument("--side", default="", metavar="NAME", help="whose values, where a log shows several engines'")
    parser.add_argument("--html", metavar="FILE", help="also write one self-contained page")
    parser.add_argument("--api-key", default="", metavar="KEY", help="sent to the endpoint as a bearer token")
    parser.add_argument("--api-model", default="", metavar="NAME", help="the endpoint's name for the model")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    if args.endpoint is not None:
        if args.dump is not None:
            raise AssayError("--endpoint asks a server; it does not go with a DUMP")
        return _ask(args)
    if args.dump is None:
        if args.model is not None and Path(args.model).suffix in (".jsonl", ".npz", ".safetensors", ".log", ".txt"):
            args.model, args.dump = None, args.model
        else:
            raise AssayError("no DUMP given and no --endpoint; see `assay diagnose --help`")
    from assay.verify.diagnosis.answer import text
    from assay.verify.diagnosis.diagnose import diagnose
    from assay.verify.dumps.load import load_dump, read_map

    file, model, tokenizer = open_model(args)
    names = read_map(Path(args.map)) if args.map else None
    dump = load_dump(Path(args.dump), model, names, tokens=args.tokens, patterns=args.pattern, side=args.side)
    result = diagnose(model, dump, progress=_progress)
    if args.prompt is not None:
        from assay.verify.diagnosis.by_tokens import expected_ids, token_causes

        expected, chat = expected_ids(file, tokenizer, args.prompt, chat=args.chat, system=args.system)
        causes = token_causes(tokenizer, dump, expected, args.prompt, chat)
        if causes:
            first = result.first_wrong or causes[0].node
            result = replace(result, verdict="fault", causes=(*causes, *result.causes), first_wrong=first)
    if args.html:
        from assay.verify.report import write_html

        write_html(Path(args.html), model, dump, result.diff, result)
    emit(args, result.to_json(), lambda: text(result, model))
    return 0 if result else 1


def _ask(args: argparse.Namespace) -> int:
    from assay.verify.diagnosis.answer import text
    from assay.verify.endpoint.blackbox import diagnose_endpoint
    from assay.verify.endpoint.client import Client

    _file, model, tokenizer = open_model(args)
    client = Client(args.endpoint, tokenizer, key=args.api_key, model=args.api_model)
    result = diagnose_endpoint(model, client, progress=_progress)
    emit(args, result.to_json(), lambda: text(result, model))
    return 0 if result else 1


def _progress(line: str) -> None:
    print(line, file=sys.stderr)
