"""`assay ps`: the state of a running server."""

from __future__ import annotations

import argparse
import json
import os
import urllib.error
import urllib.request
from typing import Any

from assay.cli import common
from assay.cli.progress import clock
from assay.cli.style import size, table
from assay.errors import AssayError
from assay.system.terminal import printable

HELP = "show the state of a running server: models, streams, queue, cache"
EXAMPLE = """
assay ps
assay ps --url http://gpu-box:8080 --api-key "$KEY"
"""
_LARGEST = 8 << 20  # bytes of an answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="address of the server (default %(default)s)")
    parser.add_argument(
        "--api-key", metavar="KEY", help="API key of the server; default: the environment variable ASSAY_API_KEY"
    )
    common.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    found = _get(args.url, args.api_key or os.environ.get("ASSAY_API_KEY"))
    common.emit(args, found, "")
    if not args.json:
        try:
            print(_text(found))
        except (LookupError, TypeError, ValueError):
            raise AssayError(f"{args.url}: not an assay server, or one of another version") from None
    return 0


def _text(found: dict[str, Any]) -> str:
    rows = [
        (
            str(m["id"]),
            "loaded" if m["loaded"] else "on disk",
            size(m["bytes"]) if m["loaded"] else "-",
            str(m["running"]),
            str(m["waiting"]),
            f"{100 * m['cache']['used'] / max(m['cache']['positions'], 1):.0f} %" if m["loaded"] else "-",
            f"{m['tokens_per_second']:.1f}",
        )
        for m in found["models"]
    ]
    head = ("MODEL", "STATE", "MEMORY", "RUNNING", "WAITING", "CACHE", "TOKENS/S")
    up = f"assay {printable(str(found['version']), 20)}, up {clock(found['uptime_s'])}, {found['requests']} requests"
    return f"{table(head, rows, right=(2, 3, 4, 5, 6))}\n{up}"


def _get(url: str, key: str | None) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise AssayError(f"{url}: must begin with http:// or https://")
    request = urllib.request.Request(f"{url.rstrip('/').removesuffix('/v1')}/v1/status")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            found = json.loads(reply.read(_LARGEST))
    except urllib.error.HTTPError as error:
        why = {401: "wants a key; give it with --api-key", 404: "is no assay server, or an old one"}
        raise AssayError(f"{url}: {why.get(error.code, f'answered {error.code}')}") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "reason", error)
        raise AssayError(
            f"{url}: no server answers there ({printable(str(reason), 100)}); start one with `assay serve`"
        ) from None
    if not isinstance(found, dict):
        raise AssayError(f"{url}: not an assay server")
    return found
