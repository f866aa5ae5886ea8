"""Audits of a stock llama.cpp (xllamacpp) in honest and dishonest configurations: docs/lab/audits.md.

    python bench/audits.py [--model smollm2] [--seeds 1] [--only NAME] [--tokens-alone] [--jobs 16]
    python bench/audits.py --honest 1000 --jobs 16
    python bench/audits.py --dishonest 12 --jobs 16
    python bench/audits.py --model smollm2 --engine openvino

Every configuration is a process of its own behind HTTP, which all seeds of a job ask. Results are kept in
build/audits.json by model, configuration and seed, so an interrupted run continues. `--tables` prints
the tables of what is there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from bench.audit_cases import CASES, NEIGHBOURS, figures, file_of, files  # noqa: E402
from tests.verify.endpoint.stock_server import stock  # noqa: E402

from assay.gguf import open_file  # noqa: E402
from assay.models import load  # noqa: E402
from assay.runtime import hub  # noqa: E402
from assay.text import Tokenizer  # noqa: E402
from assay.verify.endpoint.audit_findings import AuditOptions  # noqa: E402
from assay.verify.endpoint.audit_run import audit_endpoint  # noqa: E402
from assay.verify.endpoint.client import Client  # noqa: E402

KEPT = ROOT / "build" / "audits.json"
ROWS = CASES | NEIGHBOURS
Job = tuple[
    str, str, str, tuple[int, ...], bool
]  # model, file of another model, case, seeds, without log-probabilities
HEAD = "| served | audits | verdicts | named | tokens to detection | requests | processor s | an answer |"


def audits(
    case: str, made: dict[str, Path], folder: Path, seeds: Sequence[int], alone: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The audits of one case, a seed of the texts each, of one server."""
    claim, served, options, proxy, words = ROWS[case]
    model = load(open_file(file_of(claim, made, folder)))
    tokenizer = Tokenizer.from_gguf(model.file)
    if "before" in proxy:
        assert tokenizer.bos is not None
        proxy = {"before": proxy["before"].replace("BOS", tokenizer.piece(tokenizer.bos).decode()).replace(" ", "")}
    proxy = {**proxy, "drop": ["logprobs"]} if alone else proxy
    with stock(file_of(served, made, folder), options, proxy) as url:
        for seed in seeds:
            started = time.process_time()
            options_of = AuditOptions(seed=seed, threads=1)
            found = audit_endpoint(model, Client(url, tokenizer), options_of, progress=lambda _: None)
            yield seed, figures(found, words) | {"cpu": round(time.process_time() - started, 1)}


def audited(job: Job) -> tuple[str, dict[int, dict[str, Any]]]:
    """A job of a process: one case, some seeds."""
    model, other, case, seeds, alone = job
    with tempfile.TemporaryDirectory() as name:
        return case, dict(audits(case, files(model, Path(name), other), Path(name), seeds, alone))


def jobs(
    args: argparse.Namespace, kept: dict[str, Any], mode: str
) -> Iterator[tuple[str, str, str, tuple[int, ...], bool]]:
    """The audits that are not kept yet. A job has few seeds if many run at a time."""
    for case in args.only or CASES:
        if case == "another model" and args.model != "synthetic" and not args.other:
            continue
        wanted = range(args.first_seed, args.first_seed + args.seeds)
        seeds = [s for s in wanted if f"{args.model}|{mode}|{case}|{s}" not in kept]
        each = 5 if args.jobs > 1 else len(seeds) or 1
        yield from ((args.model, args.other, case, tuple(seeds[i : i + each]), args.tokens_alone)
                    for i in range(0, len(seeds), each))  # fmt: skip


def tables(kept: dict[str, Any]) -> str:
    out: list[str] = []
    for model in sorted({key.split("|")[0] for key in kept}):
        for mode in ("log-probabilities", "tokens alone"):
            rows = []
            for case in ROWS:
                runs = [v for k, v in kept.items() if k.startswith(f"{model}|{mode}|{case}|")]
                if runs:
                    rows.append(_row(case, runs))
            if rows:
                out += [
                    f"## {model}, {mode}\n",
                    _summary(kept, model, mode),
                    "",
                    HEAD,
                    "|---|---|---|---|---|---|---|---|",
                    *rows,
                    "",
                ]
    return "\n".join(out)


def _summary(kept: dict[str, Any], model: str, mode: str) -> str:
    """How often honest servers are accused, and how often dishonest ones are detected and named."""
    runs = {k.split("|")[2]: list[dict[str, Any]]() for k in kept if k.startswith(f"{model}|{mode}|")}
    for key, value in kept.items():
        if key.startswith(f"{model}|{mode}|"):
            runs[key.split("|")[2]].append(value)
    honest = [run for case, found in runs.items() if not ROWS[case][4] for run in found]
    others = [run for case, found in runs.items() if ROWS[case][4] for run in found]
    words = f"Honest: {len(honest)} audits, {sum(r['verdict'] == 'differs' for r in honest)} false alarms, "
    words += f"{sum(r['verdict'] == 'inconclusive' for r in honest)} inconclusive."
    if others:
        detected, named = sum(r["verdict"] == "differs" for r in others), sum(r["named"] for r in others)
        wrong = sum(r["sure"] >= 0.9 and not r["named"] and "not in the list" not in r["said"] for r in others)
        words += f" Dishonest: {len(others)} audits, {detected} detected, {named} named as served; "
        words += f"{wrong} with another name at a confidence of 0.9 or more."
    return words


def _row(case: str, runs: list[dict[str, Any]]) -> str:
    verdicts = ", ".join(
        f"{v} {sum(r['verdict'] == v for r in runs)}" for v in dict.fromkeys(r["verdict"] for r in runs)
    )
    named = f"{sum(r['named'] for r in runs)}" if ROWS[case][4] else "–"
    at = [r["detected_after"] for r in runs if r["detected_after"]]
    detected = f"{statistics.median(at):.0f}" if at else "–"
    requests, cpu = (statistics.median(r[k] for r in runs) for k in ("requests", "cpu"))
    said = runs[0]["said"].replace("|", "\\|") or "–"
    figures = f"{named} | {detected} | {requests:.0f} | {cpu:.0f}"
    return f"| {case} | {len(runs)} | {verdicts} | {figures} | {said} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", default="synthetic", help="a model, or `synthetic` (default)")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--tokens-alone", action="store_true", help="without log-probabilities")
    parser.add_argument("--other", default="", help="file of the case `another model`")
    parser.add_argument("--honest", type=int, help="audit assay itself in honest arithmetics, so often in all")
    parser.add_argument("--dishonest", type=int, help="audit assay itself in every dishonest case, so often each")
    parser.add_argument("--engine", help="audit another engine, which serves the model honestly: a witness")
    parser.add_argument("--precision", help="of --engine")
    parser.add_argument("--jobs", type=int, default=1, help="audits at a time")
    parser.add_argument("--tables", action="store_true", help="only print the tables")
    args = parser.parse_args()
    if args.honest:
        from bench import honest_audits

        path = "" if args.model == "synthetic" else str(hub.resolve(args.model))
        honest_audits.run(args.honest, args.jobs, path, tuple(args.only), args.first_seed)
        return
    if args.dishonest:
        from bench import dishonest_audits

        dishonest_audits.run(args.dishonest, args.jobs, args.first_seed, tuple(args.only))
        return
    if args.engine:
        from bench import witness_audits

        seeds = range(args.first_seed, args.first_seed + args.seeds)
        witness_audits.run(args.engine, args.model, seeds, args.precision)
        return
    kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    if not args.tables:
        mode = "tokens alone" if args.tokens_alone else "log-probabilities"
        with ProcessPoolExecutor(args.jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
            for done in as_completed([pool.submit(audited, job) for job in jobs(args, kept, mode)]):
                case, found = done.result()
                kept |= {f"{args.model}|{mode}|{case}|{seed}": figures for seed, figures in found.items()}
                KEPT.parent.mkdir(exist_ok=True)
                KEPT.write_text(json.dumps(kept, indent=1))
                print(f"{case}: {found}", flush=True)
    print(tables(kept))


if __name__ == "__main__":
    main()
