"""How often an audit detects and names a dishonest server: assay itself, which serves something else than claimed.

    python bench/audits.py --dishonest 12 --jobs 16

Each seed draws the texts and chooses one of `MODELS` random models. A case is served in the arithmetic of a fast engine
and shows log-probabilities, token ids alone or text alone. Results are kept in build/dishonest.json, so an interrupted
run continues.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.audit_cases import CASES, figures, file_of, with_metadata
from tests.synthetic import make_kquant
from tests.verify.endpoint.own_server import Habits, OwnServer
from tests.verify.endpoint.stock_server import changed

from assay.gguf import open_file
from assay.models import load
from assay.text import Tokenizer
from assay.verify.endpoint.audit_findings import AuditOptions
from assay.verify.endpoint.audit_run import audit_endpoint
from assay.verify.endpoint.claimed_model import Setting
from assay.verify.endpoint.client import Client

KEPT = Path(__file__).parent.parent / "build" / "dishonest.json"
MODELS = 9
MODES = {
    "log-probabilities": {"top": 20},
    "token ids alone": {"top": 0},
    "text alone": {"top": 0, "ids": False},
}
METADATA = {  # an option of the stock server -> the same in a file
    "rope_freq_base": lambda x: {"llama.rope.freq_base": x},
    "rope_freq_scale": lambda x: {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1 / x},
    "chat_template": lambda x: {"tokenizer.chat_template": x},
}


def audited(task: tuple[str, str, int]) -> tuple[str, dict[str, Any]]:
    """One audit: what the server shows, the case, a seed."""
    mode, case, seed = task
    _, kind, options, proxy, words = CASES[case]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        number = 100 + seed % MODELS
        made = {"claim": make_kquant(folder / "claim.gguf", seed=number), "other": folder / "other.gguf"}
        make_kquant(made["other"], seed=number + MODELS)
        claim, served = load(open_file(made["claim"])), file_of(kind, made, folder)
        changes = {k: v for key, of in METADATA.items() if key in options for k, v in of(options[key]).items()}
        if changes:
            served = with_metadata(open_file(served), folder / "changed.gguf", changes)
        tokenizer, started = Tokenizer.from_gguf(claim.file), time.process_time()
        if "before" in proxy:
            assert tokenizer.bos is not None
            proxy = {"before": tokenizer.piece(tokenizer.bos).decode()}
        arithmetic = Setting(precision="fast", cache=options.get("cache_type_k", ""))
        with OwnServer(load(open_file(served)), Habits((arithmetic,), **MODES[mode]), seed) as server:

            def ask(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
                wanted = body.get("return_token_ids", False)
                return server.ask(path, changed(dict(body), proxy) | {"return_token_ids": wanted})

            asked = AuditOptions(seed=seed, threads=1, others=(made["other"],))
            found = audit_endpoint(claim, Client(case, tokenizer, ask=ask), asked, progress=lambda _: None)
    return f"{mode}|{case}|{seed}", figures(found, words) | {"cpu": round(time.process_time() - started, 1)}


def run(n: int, jobs: int, first: int, only: tuple[str, ...] = ()) -> None:
    """`n` audits of every case and mode."""
    kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    cases = [case for case, row in CASES.items() if row[4] and (not only or case in only)]
    wanted = [(mode, case, seed) for seed in range(first, first + n) for case in cases for mode in MODES]
    tasks = [task for task in wanted if "|".join(map(str, task)) not in kept]
    KEPT.parent.mkdir(exist_ok=True)
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # of the processes that are started now
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for i, (key, found) in enumerate(pool.imap_unordered(audited, tasks)):
            kept[key] = found
            if i % 45 == 44 or i + 1 == len(tasks):
                KEPT.write_text(json.dumps(kept, indent=0))
                print(f"{i + 1} of {len(tasks)}", flush=True)
    print("\n".join(table(kept)))


def table(kept: dict[str, Any]) -> Iterator[str]:
    """The rows of the page, by what the server shows."""
    for mode in MODES:
        runs = {case: [v for k, v in kept.items() if k.startswith(f"{mode}|{case}|")] for case in CASES}
        every = [run for found in runs.values() for run in found]
        if not every:
            continue
        detected, named = sum(r["verdict"] == "differs" for r in every), sum(r["named"] for r in every)
        wrong = sum(r["sure"] >= 0.9 and not r["named"] for r in every)
        yield f"{mode}: {len(every)} audits, {detected} detected, {named} named; {wrong} not named at 0.9 or more."
        yield "| served | audits | detected | named | tokens to detection | most | an answer |"
        yield "|---|---|---|---|---|---|---|"
        for case, found in runs.items():
            if found:
                at = [r["detected_after"] for r in found if r["detected_after"]]
                tokens = f"{statistics.median(at):.0f} | {max(at)}" if at else "– | –"
                counts = [sum(r["verdict"] == "differs" for r in found), sum(r["named"] for r in found)]
                wrong_first = sorted(found, key=lambda r: (r["named"], r["said"]))[0]
                yield f"| {case} | {len(found)} | {counts[0]} | {counts[1]} | {tokens} | {wrong_first['said'] or '–'} |"
        yield ""
