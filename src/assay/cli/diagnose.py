"""`assay diagnose`: find the wrong operation, the known mistake that reproduces the values, and the right formula."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.cli.cluster_options import add_cluster_argument
from assay.cli.common import (
    add_json_argument,
    add_lora_argument,
    add_model_argument,
    add_reading_arguments,
    dump_of,
    emit,
    opened,
    text_argument,
    token_ids,
)
from assay.cli.number_types import real
from assay.cli.picture_verdict import add_picture_arguments, judge_picture
from assay.errors import AssayError
from assay.system.file_kinds import GGUF, first_bytes
from assay.system.files import check_target

if TYPE_CHECKING:
    from assay.runtime.opening import Opened
    from assay.verify.diagnosis.candidates import Share

HELP = "find the bug in an engine, from its dump or over HTTP"
EXAMPLE = """assay diagnose smollm2 dump.jsonl
assay diagnose smollm2 dump.npz -p "The capital of France is" --html report.html
assay diagnose smollm2 --endpoint http://localhost:8080
assay diagnose gemma-3-4b.gguf dump.npz --image cat.png --html report.html"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    parser.add_argument(
        "dump",
        nargs="?",
        metavar="DUMP",
        help="file that the engine printed or saved, - for standard input, or a folder of such files; see "
        "docs/reference/dump-format.md",
    )
    parser.add_argument("--endpoint", metavar="URL", help="test an OpenAI-compatible server instead of a dump")
    add_picture_arguments(parser)
    parser.add_argument("-p", "--prompt", type=text_argument, metavar="TEXT", help="text that the engine was given")
    parser.add_argument("--chat", action="store_true", help="the text is a user message; apply the chat template")
    parser.add_argument("--system", type=text_argument, metavar="TEXT", help="system message for --chat")
    parser.add_argument("--tokens", type=token_ids, default=[], metavar="IDS", help="token ids, if the dump has none")
    add_reading_arguments(parser)
    add_lora_argument(parser, "LoRA adapter (GGUF) that the engine applied")
    parser.add_argument("--side", default="", metavar="NAME", help="engine whose values to read, if a log has several")
    parser.add_argument(
        "--seconds",
        type=real(0, above=True),
        metavar="S",
        help="end the search of a dump after S seconds of computing (default 30)",
    )
    parser.add_argument("--thorough", action="store_true", help="search for up to 60 seconds")
    parser.add_argument("--html", metavar="FILE", help="also write one self-contained page")
    parser.add_argument("--api-key", default="", metavar="KEY", help="API key of the endpoint, sent as a bearer token")
    parser.add_argument("--api-model", default="", metavar="NAME", help="name of the model at the endpoint")
    add_cluster_argument(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    if args.endpoint is not None:
        if args.dump is not None:
            raise AssayError("--endpoint: tests a server; leave DUMP out")
        if args.lora:
            raise AssayError("--lora: judges a dump; leave --endpoint out")
        return _diagnose(args, endpoint=args.endpoint, api_key=args.api_key, api_model=args.api_model)
    if args.dump is None:
        if args.model is not None and Path(args.model).suffix in (".jsonl", ".npz", ".safetensors", ".log", ".txt"):
            args.model, args.dump = None, args.model
        else:
            raise AssayError("no DUMP given and no --endpoint; see `assay diagnose --help`")
    elif args.model is not None and Path(args.model).is_file() and _is_model(args.dump) and not _is_model(args.model):
        args.model, args.dump = args.dump, args.model  # typed the other way round
    with dump_of(args, args.dump) as args.dump:
        return _diagnose_dump(args)


def _diagnose_dump(args: argparse.Namespace) -> int:
    if args.image is not None:
        return judge_picture(args, args.model, args.dump, diagnosing=True)
    from assay.verify.dumps.load import read_map

    names = read_map(Path(args.map)) if args.map else None
    return _diagnose(
        args, values=args.dump, tokens=args.tokens, names=names, patterns=args.pattern, side=args.side,
        prompt=args.prompt, chat=args.chat, system=args.system,
    )  # fmt: skip


def _is_model(argument: str) -> bool:
    path = Path(argument)
    return path.is_file() and first_bytes(path)[:4] == GGUF


def _diagnose(args: argparse.Namespace, **evidence: Any) -> int:
    from assay.library.verdicts import diagnose
    from assay.verify.thresholds import SECONDS, THOROUGH_SECONDS

    if args.html:
        check_target(args.html)
    on = opened(args)
    if args.lora:
        if args.cluster is not None:
            raise AssayError("--lora: not with --cluster: its workers have no adapters")
        on = on.with_adapters()
    share = _share_on_cluster(args, on, evidence) if args.cluster is not None and args.dump is not None else None
    seconds = args.seconds or (THOROUGH_SECONDS if args.thorough else SECONDS)
    found = diagnose(on, share=share, seconds=seconds, **evidence)
    if args.html:
        found.save_html(args.html)
    emit(args, found.to_dict(), lambda: repr(found))
    return 0 if found else 1


def _share_on_cluster(args: argparse.Namespace, on: Opened, evidence: dict[str, Any]) -> Share:
    """Workers of a cluster test the hypotheses that need a run of the model."""
    from assay.cli import cluster_options as on_cluster
    from assay.cluster import sweep, tasks

    asked = {key: evidence[key] for key in ("tokens", "names", "patterns", "side")}
    place = on_cluster.worker_pool(args), sweep.folder(args.results), on_cluster.sweep_progress()
    return tasks.shared_trials(on, Path(args.dump), asked, *place)
