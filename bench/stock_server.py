"""Audits of a real llama.cpp server as a user runs them, one option of the server changed.

    python bench/stock_server.py [--model smollm2] [--only NAME] [--server PATH | --python-server] [--diagnose]

The audit is `assay audit URL --model FILE`. The server is llama-server's own HTTP as xllamacpp starts it, with
llama-server's defaults. `--server` starts that binary, and `--python-server` starts `python -m llama_cpp.server`. Both
processes have one thread. Their processor time is measured, because other work on a machine makes seconds meaningless.
Results are kept in --kept by server, model, case and seed of the texts; `--table` prints them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from bench.audit_cases import file_of  # noqa: E402
from bench.stock_cases import CASES, FLAGS, PYTHON_NAMES, ServedCase  # noqa: E402

from assay.gguf import GGUFFile, open_file  # noqa: E402
from assay.runtime import hub  # noqa: E402

KEPT = ROOT / "build" / "stock_server.json"
START_S = 120.0
HEAD = "| served | verdict | right | tokens | requests | processor s: audit + server | the answer |"


def command(args: argparse.Namespace, served: Path, case: ServedCase, port: int) -> list[str]:
    """The command that starts the server of a case."""
    options, own = {"n_threads": 1, **case.options}, str(port)
    if args.server:
        words = [args.server, "-m", str(served), "--port", own, "-ngl", "0", "--log-disable"]
        return words + [w for key, value in options.items() for w in _flag(FLAGS[key], value)]
    if args.python_server:
        words = [
            sys.executable,
            "-m",
            "llama_cpp.server",
            "--model",
            str(served),
            "--port",
            own,
            "--logits_all",
            "true",
        ]
        return words + [w for key, value in options.items() for w in (f"--{PYTHON_NAMES[key]}", str(value))]
    given = {f"{_inner(key)}{key}": value for key, value in case.options.items()}
    return [
        sys.executable,
        "-m",
        "tests.verify.endpoint.stock_server",
        str(served),
        json.dumps(given),
        json.dumps(case.proxy),
    ]


def _inner(key: str) -> str:
    return "sampling." if FLAGS.get(key, "").startswith("sampling:") else ""


def _flag(flag: str, value: Any) -> list[str]:
    flag = flag.removeprefix("sampling:")
    if isinstance(value, bool):
        return [flag] if value else [f"--no-{flag.removeprefix('--')}"]
    return [flag, str(value)]


class NoServer(Exception):
    """The server does not take the option: a cache in blocks of 32 with heads of 48, for example."""


@contextmanager
def served_at(args: argparse.Namespace, served: Path, case: ServedCase) -> Iterator[tuple[str, int]]:
    """The address of a running server and its process id."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    process = subprocess.Popen(
        command(args, served, case, port), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{port}"
        if args.server or args.python_server:
            _wait(url, process)
        else:
            url = next((line.strip() for line in process.stdout if line.startswith("http://")), "")
        if not url or process.poll() is not None:
            raise NoServer(f"the server of {case.name!r} did not start: {' '.join(map(str, process.args))}")
        yield url, process.pid
    finally:
        process.terminate()
        process.wait()


def _wait(url: str, process: subprocess.Popen[str]) -> None:
    """Until the server answers."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError):
            urllib.request.urlopen(f"{url}/v1/models").close()
            return
        time.sleep(0.3)


def audited(args: argparse.Namespace, case: ServedCase, claim: Path, served: Path) -> dict[str, Any]:
    """One audit by the command line, and what it cost."""
    with served_at(args, served, case) as (url, pid):
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), _seconds(pid)
        verb = ["audit", url, "--texts-seed", str(args.seed), "-t", "1"]
        if args.diagnose:
            verb = ["diagnose", "--endpoint", url]
        words = [sys.executable, "-m", "assay", *verb, "--model", str(claim), "--json", *case.asked]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = {
            "auditor": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "server": _seconds(pid) - started,
        }
    found: dict[str, Any] = {"rc": done.returncode, **{k: round(v, 1) for k, v in cpu.items()}}
    try:
        report = json.loads(done.stdout)
    except ValueError:
        return found | {"verdict": "error", "said": done.stderr.strip().split("\n")[-1], "notes": []}
    if args.diagnose:
        return found | {"verdict": report["verdict"], "said": _causes(report), "notes": report.get("notes", [])}
    said = "; ".join(f"{f['words']} ({f['confidence']:.2f})" for f in report["findings"])
    keys = ("verdict", "requests", "seconds", "distance", "noise", "places", "log10_odds", "notes")
    sure = max((f["confidence"] for f in report["findings"]), default=0.0)
    words_of = [w for f in report["findings"][:1] for w in (f["words"], *f["equivalent"])]
    tokens = report["reading"]["generated_tokens"]
    return found | {k: report[k] for k in keys} | {"said": said, "sure": sure, "first": words_of, "tokens": tokens}


def _causes(report: dict[str, Any]) -> str:
    causes = [f"{c['fault']}: {c['how']} ({c['confidence']:.2f})" for c in report.get("causes", [])]
    return "; ".join(causes)


def _seconds(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def judged(case: ServedCase, run: dict[str, Any]) -> str:
    """`right`, `open`, or what is wrong with the answer."""
    if run["verdict"] == "error":
        return "**error**"
    if not case.right:
        return {"as claimed": "right", "healthy": "right", "differs": "**false alarm**"}.get(run["verdict"], "open")
    if run["verdict"] in ("as claimed", "healthy"):
        return "**missed**"
    if any(re.search(case.right, words) for words in run.get("first", [run["said"]])):
        return "right"
    return "**wrong**" if run.get("sure", 0.0) >= 0.9 else "open"


def table(kept: dict[str, Any]) -> Iterator[str]:
    for kind in dict.fromkeys(key.rsplit("|", 2)[0] for key in kept):
        yield f"\n{kind}\n\n{HEAD}\n|---|---|---|---|---|---|---|"
        for case in CASES.values():
            for key, run in kept.items():
                if key.rsplit("|", 1)[0] == f"{kind}|{case.name}":
                    said = run["said"].replace("|", "\\|") or "–"
                    figures = f"{run.get('tokens', '–')} | {run.get('requests', '–')}"
                    figures += f" | {run['auditor']:.0f} + {run['server']:.0f}"
                    yield f"| {case.name} | {run['verdict']} | {judged(case, run)} | {figures} | {said} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", default="smollm2", help="the claimed model (default: smollm2)")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--server", help="path of llama-server, to start it in the place of xllamacpp")
    parser.add_argument("--python-server", action="store_true", help="start llama-cpp-python's server")
    parser.add_argument(
        "--diagnose", action="store_true", help="`assay diagnose --endpoint` in the place of `assay audit`"
    )
    parser.add_argument("--kept", type=Path, default=KEPT, help="file of results")
    parser.add_argument("--table", action="store_true", help="only print the tables")
    args = parser.parse_args()
    kept: dict[str, Any] = json.loads(args.kept.read_text()) if args.kept.exists() else {}
    kind = "llama-server" if args.server else "llama_cpp.server" if args.python_server else "xllamacpp"
    claimed = hub.resolve(args.model)
    file = open_file(claimed)
    with tempfile.TemporaryDirectory() as name:
        folder, made = Path(name), {"claim": claimed, "other": Path(name) / "other.gguf"}
        for case in CASES.values():
            key = f"{kind}, {'diagnose' if args.diagnose else 'audit'}, {claimed.stem}|{case.name}|{args.seed}"
            if (
                args.table
                or key in kept
                or (args.only and case.name not in args.only)
                or not runs_here(args, case, file)
            ):
                continue
            claim, served = (file_of(part, made, folder) for part in (case.claim, case.served))
            try:
                kept[key] = audited(args, case, claim, served)
            except NoServer as error:
                print(error, flush=True)
                continue
            args.kept.parent.mkdir(exist_ok=True)
            args.kept.write_text(json.dumps(kept, indent=1))
            print(f"{case.name}: {judged(case, kept[key])}: {kept[key]}", flush=True)
    print("\n".join(table(kept)))


def runs_here(args: argparse.Namespace, case: ServedCase, claimed: GGUFFile) -> bool:
    """Has the server the options of a case, and the claimed file what they change?"""
    if "chat_template" in case.options and "tokenizer.chat_template" not in claimed.metadata:
        return False
    adds_bos = claimed.metadata.get(
        "tokenizer.ggml.add_bos_token", claimed.metadata.get("tokenizer.ggml.model") == "llama"
    )
    if case.adds_bos not in (None, adds_bos):
        return False
    if args.python_server:
        return not case.proxy and all(key in PYTHON_NAMES for key in case.options)
    return not (args.server and case.proxy)


if __name__ == "__main__":
    main()
