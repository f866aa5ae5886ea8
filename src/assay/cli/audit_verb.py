"""`assay audit`: does an endpoint serve the model that it claims, and if not, what does it serve?"""

from __future__ import annotations

import argparse
from pathlib import Path

from assay.cli.common import add_json_argument, emit, opened, read_text
from assay.cli.number_types import MOST_THREADS, real, whole
from assay.errors import AssayError

CODES = {"as claimed": 0, "differs": 1, "inconclusive": 2}  # exit codes by verdict
HELP = "test whether an endpoint serves the model it claims"
EXAMPLE = """\
assay audit http://localhost:8080 --model smollm2
assay audit https://api.example.com/v1 --model model.gguf --api-model the-model --html audit.html
assay audit http://localhost:8080 --model smollm2 --also other.gguf --alpha 1e-6
assay audit http://localhost:8080 --model smollm2 --resume answers.jsonl   # goes on where a stopped audit was"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="address of the server, with or without /v1")
    parser.add_argument(
        "-m", "--model", metavar="MODEL", required=True,
        help="the claimed model: a path, a name, hf:owner/repo, ollama:name or a folder of safetensors",
    )  # fmt: skip
    parser.add_argument(
        "--alpha", type=real(0, 0.5, above=True), default=1e-3, metavar="P",
        help="error rate of every statement; default: 0.001",
    )  # fmt: skip
    parser.add_argument(
        "--max-tokens", type=whole(4), metavar="N",
        help="tokens of continued texts to spend at most; conversations and draws take 240 or more besides; "
        "default: 480 with log-probabilities, 3000 without",
    )  # fmt: skip
    parser.add_argument("--texts-seed", type=whole(0), default=0, metavar="N", help="seed of the texts; default: 0")
    parser.add_argument("--prompts", metavar="FILE", help="texts to ask about instead, separated by empty lines")
    parser.add_argument(
        "--also", action="append", default=[], metavar="MODEL", help="a model that may be served instead; repeatable"
    )
    parser.add_argument("--api-model", default="", metavar="NAME", help="name of the model at the endpoint")
    parser.add_argument(
        "--pause", type=real(0), default=0.0, metavar="S", help="seconds between two requests; default: 0"
    )
    parser.add_argument(
        "--timeout", type=real(0, 86400, above=True), metavar="S",
        help="seconds to wait for an answer; default: 120",
    )  # fmt: skip
    parser.add_argument(
        "--resume", metavar="FILE", help="keep the answers in this file, and take those that it has already"
    )
    parser.add_argument("--no-chat", action="store_true", help="do not test the chat template")
    parser.add_argument("--no-draws", action="store_true", help="do not test sampling")
    parser.add_argument(
        "--faults", action="store_true", help="if nothing else fits, try the catalogue of engine faults (minutes)"
    )
    parser.add_argument(
        "--engine", choices=("cpu", "cuda"), default="cpu",
        help="engine that computes the claim, for large models cuda; default: cpu",
    )  # fmt: skip
    parser.add_argument(
        "-t", "--threads", type=whole(1, MOST_THREADS), metavar="N", help="threads of the simulations; default: all"
    )
    parser.add_argument("--html", metavar="FILE", help="also write one self-contained page")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from assay.library.auditing import audit
    from assay.runtime import hub

    for name in args.also:
        if not Path(name).is_dir():
            hub.check(name)
    if args.html and not Path(args.html).parent.is_dir():
        raise AssayError(f"--html {args.html}: no such folder; make it first")
    found = audit(
        args.url, args.model if Path(args.model).is_dir() else opened(args), alpha=args.alpha,
        tokens=args.max_tokens, seed=args.texts_seed, prompts=_prompts(args.prompts),
        others=args.also, api_model=args.api_model, pause=args.pause, timeout=args.timeout,
        resume=args.resume, threads=args.threads, chat=not args.no_chat,
        draws=not args.no_draws, engine_faults=args.faults, engine=args.engine,
    )  # fmt: skip
    emit(args, found.to_dict(), lambda: repr(found))
    if args.html:
        found.save_html(args.html)
    return CODES[found.verdict]


def _prompts(path: str | None) -> list[str]:
    """The texts of a file, separated by empty lines."""
    if path is None:
        return []
    found = [text.strip() for text in read_text(path).split("\n\n") if text.strip()]
    if len(found) < 2:
        raise AssayError(f"--prompts {path}: too few texts (found {len(found)}, expected at least 2)")
    return found
