"""How often an audit accuses an honest server: thousands of audits of assay itself in honest arithmetics.

    python bench/audits.py --honest 1000 --jobs 16 [--model FILE]

Audits run in processes of one thread each. Each has a seed of its own, which draws the texts and, without `--model`,
chooses one of `MODELS` random models; a given file is taken in turn as it is, in Q4_0 and in Q4_1. Results are kept in
build/honest.json, so an interrupted run continues.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tests.synthetic import make_kquant
from tests.verify.endpoint.own_server import RULES, Habits, OwnServer

from assay.gguf import open_file
from assay.gguf.mixes import mix_by_name
from assay.gguf.requantize import quantize
from assay.models import Model, load
from assay.verify.endpoint.audit_findings import AuditOptions
from assay.verify.endpoint.audit_report import headline
from assay.verify.endpoint.audit_run import audit_endpoint
from assay.verify.endpoint.claimed_model import Setting
from assay.verify.endpoint.client import Client

KEPT = Path(__file__).parent.parent / "build" / "honest.json"
MODELS = 9  # random models, by seed
MIXES = ("", "Q4_0", "Q4_1")  # of a given file
EXACT, FAST, Q8 = Setting(), Setting(precision="fast"), Setting(precision="fast", cache="q8_0")
HALF, BRAIN = "half precision", "bfloat16"
OTHERS = ("Q8 activations and a half cache", "Q8 activations and a cache of eight bits", "weights in half precision")
assert {HALF, BRAIN, *OTHERS} <= RULES.keys()
HONEST = {
    "8-bit activations": Habits(),
    "float32": Habits((EXACT,)),
    "cache in q8_0": Habits((Q8,)),
    "float16": Habits((HALF,)),
    "bfloat16": Habits((BRAIN,)),
    "8-bit activations as llama.cpp": Habits(OTHERS[:1]),
    "8-bit activations, q8_0 cache as llama.cpp": Habits(OTHERS[1:2]),
    "weights in float16": Habits(OTHERS[2:]),
    "kernels change between requests": Habits((EXACT, FAST, Q8, HALF, BRAIN)),
    "two digits": Habits(digits=2),
    "one digit": Habits(digits=1),
    "5 log-probabilities": Habits((Q8,), top=5),
    "prompts scored": Habits((BRAIN,), echo=True),
    "tokens alone, 8-bit activations": Habits(top=0),
    "tokens alone, float32": Habits((EXACT,), top=0),
    "tokens alone, cache in q8_0": Habits((Q8,), top=0),
    "tokens alone, bfloat16": Habits((BRAIN,), top=0),
    "tokens alone, kernels change": Habits((EXACT, FAST, Q8, HALF, BRAIN), top=0),
    "text alone": Habits((Q8,), top=0, ids=False),
    "text alone, bfloat16": Habits((BRAIN,), top=0, ids=False),
}


@lru_cache(maxsize=MODELS)
def _model(path: str, seed: int) -> Model:
    mix = MIXES[seed % len(MIXES)]
    if path and not mix:
        return load(open_file(Path(path)))
    made = KEPT.parent / f"honest-{os.getpid()}-{seed}.gguf"
    made.parent.mkdir(exist_ok=True)
    try:
        if path:
            quantize(open_file(Path(path)), made, mix_by_name(mix), allow_requantize=True, threads=1)
        else:
            make_kquant(made, seed=100 + seed)
        return load(open_file(made))
    finally:
        made.unlink(missing_ok=True)  # it stays mapped


def _possible(habits: Habits, model: Model) -> Habits:
    """Without a cache in q8_0 where heads are no multiple of its blocks."""
    if all(layer.n_embd_head % 32 == 0 for layer in model.hparams.layers):
        return habits
    kinds = tuple(kind for kind in habits.arithmetics if kind not in (Q8, OTHERS[1]))
    return replace(habits, arithmetics=kinds or (FAST,))


def audited(task: tuple[str, str, int]) -> tuple[str, dict[str, Any]]:
    """One audit: the name of the habits, a model's file or nothing, a seed."""
    name, path, seed = task
    model, started = _model(path, seed % MODELS), time.process_time()
    with OwnServer(model, _possible(HONEST[name], model), seed) as server:
        client = Client(f"{name} {seed}", server.tokenizer, ask=server.ask)
        found = audit_endpoint(model, client, AuditOptions(seed=seed, threads=1), progress=lambda _: None)
    return f"{Path(path).name}|{name}|{seed}", {
        "verdict": found.verdict, "said": headline(found) if found.findings else "", "tokens": found.places,
        "sure": max((f.confidence for f in found.findings), default=0.0), "requests": found.requests,
        "odds": round(found.evidence / math.log(10), 2), "cpu": round(time.process_time() - started, 1),
    }  # fmt: skip


def run(n: int, jobs: int, path: str = "", only: tuple[str, ...] = (), first: int = 0) -> None:
    """At least `n` audits, spread evenly over the habits; those that are kept count."""
    kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    names = only or tuple(HONEST)
    wanted = [(name, path, seed) for seed in range(first, first + math.ceil(n / len(names))) for name in names]
    tasks = [t for t in wanted if f"{Path(path).name}|{t[0]}|{t[2]}" not in kept]
    KEPT.parent.mkdir(exist_ok=True)
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # of the processes that are started now
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for i, (key, found) in enumerate(pool.imap_unordered(audited, tasks)):
            kept[key] = found
            if found["verdict"] == "differs":
                print(f"FALSE ALARM {key}: {found}", flush=True)
            if i % 50 == 49 or i + 1 == len(tasks):
                KEPT.write_text(json.dumps(kept, indent=0))
                print(f"{i + 1} of {len(tasks)}", flush=True)
    print("\n".join(table(kept)))


def table(kept: dict[str, Any]) -> Iterator[str]:
    """The rows of the page, and the bound on the rate that the number of audits supports."""
    yield "| honest server | audits | as claimed | inconclusive | false alarms | tokens | largest odds |"
    yield "|---|---|---|---|---|---|---|"
    for name in HONEST:
        runs = [v for k, v in kept.items() if k.split("|")[1] == name]
        if runs:
            by = [sum(r["verdict"] == v for r in runs) for v in ("as claimed", "inconclusive", "differs")]
            tokens = sorted(r["tokens"] for r in runs)[len(runs) // 2]
            figures = f"{by[0]} | {by[1]} | {by[2]} | {tokens} | 1e{max(r['odds'] for r in runs):.1f}"
            yield f"| {name} | {len(runs)} | {figures} |"
    alarms = sum(r["verdict"] == "differs" for r in kept.values())
    yield ""
    yield (
        f"{len(kept)} audits, {alarms} false alarms. Without an alarm, the rate is below "
        f"{3 / max(1, len(kept)):.4f} at a confidence of 95 %."
    )
