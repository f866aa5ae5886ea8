"""Mistakes of an engine behind an endpoint: does `diagnose --endpoint` name them?

    python bench/endpoint_faults.py [--only FAULT] [--jobs 1] [--model-seed 7]

The engine of tests/second_engine.py shares no code with the package. It serves a random model over HTTP with one fault
of the catalogue planted. A fault counts as named if it is the first cause, or one that the first cause cannot be told
from.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.synthetic import make_kquant
from tests.verify.endpoint.faulty_server import serving
from tests.verify.endpoint.test_blackbox import SHORT

from assay.gguf import open_file
from assay.models import load
from assay.text import Tokenizer
from assay.verify.endpoint.blackbox import diagnose_endpoint
from assay.verify.endpoint.client import Client

FAULTS = (
    "rope-type", "rope-linear", "rope-missing", "rope-twice", "rope-base/odd", "pos-reset-decode", "mask-plus1",
    "pos-off-by-one-decode", "scale-missing", "scale-wrong-dim", "gqa-modulo", "kq-swapped", "kv-pre-rope",
    "ffn-silu-on-up", "ffn-act-family", "norm-no-weight", "norm-layernorm", "res-missing", "head-no-final-norm",
    "eps-value/odd",
)  # fmt: skip
SURE = 0.9


def diagnosed(task: tuple[str, int]) -> tuple[str, str, float, bool, float]:
    """The fault, what was said of it, with which confidence, whether that is right, and seconds of the processor."""
    fault, seed = task
    with tempfile.TemporaryDirectory() as folder:
        path, started = make_kquant(Path(folder) / "model.gguf", seed), time.process_time()
        model = load(open_file(path))
        with serving(path, fault) as url:
            found = diagnose_endpoint(model, Client(url, Tokenizer.from_gguf(model.file)), lambda _: None, SHORT)
    causes = found.causes[:1]
    named = [f for cause in causes for f in (cause.fault, *cause.equivalent)]
    said = f"{found.verdict}: {causes[0].fault} ({causes[0].how})" if causes else f"{found.verdict} {found.first_wrong}"
    right = fault.split("/")[0] in named
    return fault, said, causes[0].confidence if causes else 0.0, right, time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--model-seed", type=int, default=7, help="of the random model")
    args = parser.parse_args()
    results = []
    tasks = [(fault, args.model_seed) for fault in args.only or FAULTS]
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for fault, said, sure, right, took in pool.imap_unordered(diagnosed, tasks):
            results.append((sure, right))
            print(f"| {fault} | {'named' if right else 'not named'} | {sure:.2f} | {took:.0f} | {said} |", flush=True)
    wrong = sum(sure >= SURE and not right for sure, right in results)
    named = sum(right for _, right in results)
    print(f"{named} of {len(results)} named; {wrong} wrong at a confidence of {SURE} or more")


if __name__ == "__main__":
    main()
