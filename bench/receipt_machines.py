"""Receipts that are made on one machine and verified on another, and every change that is found there.

    python bench/receipt_machines.py make FOLDER
    python bench/receipt_machines.py check FOLDER [--engine cpu] [--isa NAME]

`make` writes a random model of 1.5 MB and receipts of it: greedy and drawn answers, penalties, filters, caches in f16
and q8_0, both precisions. `check` replays them, whole and at ten random positions. Then it changes every token, row and
setting, the prompt, the seed and 500 random bits of weights, one at a time. A stranger's change breaks a hash. A
signer's change, with hashes and signature made again, has to be found by computing. A setting that the answer does not
depend on is a true statement there, so settings are changed by the stranger alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
from tests.synthetic import make_kquant

from assay.gguf import open_file
from assay.models import load
from assay.runtime.opening import OpenOptions, open_model
from assay.runtime.params import SamplerParams
from assay.runtime.receipt_replay import replay
from assay.runtime.receipts import Receipt, Signer, chain, header_of, ids_digest, make_receipt, read_receipt
from assay.runtime.scheduler import Scheduler, deliver
from assay.runtime.sequence import Job

SECRET = bytes(range(32))
PROMPT, TOKENS = (1, 9, 40, 77, 300, 12, 5), 24
SETTINGS = (
    SamplerParams(temp=0.0, seed=1),
    SamplerParams(seed=2),
    SamplerParams(temp=1.3, top_k=0, top_p=1.0, min_p=0.0, seed=2**63 + 5),
    SamplerParams(repeat_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.1, typical=0.9, seed=4),
    SamplerParams(dry_multiplier=0.8, xtc_probability=0.5, top_n_sigma=2.0, logit_bias=((7, 1.5), (9, -5.0)), seed=5),
)
FILES = 500
KINDS = (("fast", "f16"), ("fast", "q8_0"), ("exact", "f16"))  # precision and type of the cache


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path, found = make_kquant(folder / "model.gguf"), []
    for precision, kv_type in KINDS:
        on = open_model(path, OpenOptions(threads=1, cache_size=2048, precision=precision, kv_type=kv_type))
        engine = on.engine()
        scheduler = Scheduler(engine, on.tokenizer, n_ctx=256)
        jobs = [Job(PROMPT, settings, TOKENS, ignore_eos=True, receipt=True) for settings in SETTINGS]
        sequences = [scheduler.make(job, lambda update: None) for job in jobs]
        scheduler.add(sequences)
        while not all(s.finished for s in sequences):
            deliver(scheduler.step())
        for s in sequences:
            header = header_of(on.file.sha256, engine.arithmetic, s.job.params, s.seed, PROMPT, constrained=False)
            found.append(make_receipt(header, PROMPT, s.ids[s.n_prompt :], s.row_digests, Signer(SECRET)).to_dict())
        engine.close()
    (folder / "receipts.json").write_text(json.dumps(found))
    print(f"{len(found)} receipts of {TOKENS} tokens")


def strangers(receipt: Receipt) -> Iterator[Receipt]:
    """Every change of one thing, with the hashes and the signature as they were."""
    for i, token in enumerate(receipt.tokens):
        yield replace(receipt, tokens=(*receipt.tokens[:i], token ^ 1, *receipt.tokens[i + 1 :]))
        row = bytes([receipt.rows[i][0] ^ 1]) + receipt.rows[i][1:]
        yield replace(receipt, rows=(*receipt.rows[:i], row, *receipt.rows[i + 1 :]))
    for i, token in enumerate(receipt.prompt):
        yield replace(receipt, prompt=(*receipt.prompt[:i], token ^ 1, *receipt.prompt[i + 1 :]))
    settings: dict[str, Any] = receipt.header["settings"]
    for name, value in settings.items():
        other = [*value, [3, 0.5]] if isinstance(value, list) else value + 1
        yield replace(receipt, header={**receipt.header, "settings": {**settings, name: other}})
    for name in ("file", "seed"):
        yield replace(receipt, header={**receipt.header, name: f"{receipt.header[name]}1"})
    for i in range(4):
        kinds = list(receipt.header["arithmetic"])
        kinds[i] = kinds[i] + 1 if i == 3 else f"{kinds[i]}x"
        yield replace(receipt, header={**receipt.header, "arithmetic": kinds})


def signers(receipt: Receipt) -> Iterator[Receipt]:
    """Every token, every row, the prompt and the seed changed by the signer, who makes the hashes again."""
    signer = Signer(SECRET)
    for i, token in enumerate(receipt.tokens):
        tokens = (*receipt.tokens[:i], token ^ 1, *receipt.tokens[i + 1 :])
        yield make_receipt(receipt.header, receipt.prompt, tokens, receipt.rows, signer)
        rows = (*receipt.rows[:i], bytes(16), *receipt.rows[i + 1 :])
        yield make_receipt(receipt.header, receipt.prompt, receipt.tokens, rows, signer)
    prompt = (*receipt.prompt[:-1], receipt.prompt[-1] ^ 1)
    header = {**receipt.header, "prompt": ids_digest(prompt)}
    yield make_receipt(header, prompt, receipt.tokens, receipt.rows, signer)
    if receipt.header["settings"]["temp"]:
        header = {**receipt.header, "seed": str(int(receipt.header["seed"]) ^ 1)}
        yield make_receipt(header, receipt.prompt, receipt.tokens, receipt.rows, signer)


def changed_files(folder: Path, receipt: Receipt, n: int) -> int:
    """Of `n` files with one bit changed, those that are not taken for the receipt's. The whole file is hashed."""
    raw, rng, found = bytearray((folder / "model.gguf").read_bytes()), np.random.default_rng(1), 0
    tensors = open_file(folder / "model.gguf").tensors.values()
    first = min(t.offset for t in tensors)
    for at in rng.integers(first, max(t.offset + t.nbytes for t in tensors), n):
        raw[at] ^= 1 << int(rng.integers(8))
        found += hashlib.sha256(raw).hexdigest() != receipt.header["file"]
    return found


def check(folder: Path, engine: str, every: int) -> bool:
    model = load(open_file(folder / "model.gguf"))
    receipts = [read_receipt(item) for item in json.loads((folder / "receipts.json").read_text())]
    options: dict[str, Any] = {"engine": engine, "threads": 2}
    started = time.process_time()
    whole = sum(bool(replay(r, model, **options)) for r in receipts)
    some = sum(bool(replay(r, model, positions=10, seed=i, **options)) for i, r in enumerate(receipts))
    words = f"{platform.machine()}, {engine}, {os.environ.get('ASSAY_ISA', 'fastest')}"
    print(f"{words}: {whole} of {len(receipts)} agree whole, {some} at ten positions", flush=True)
    tried = caught = 0
    for receipt in receipts:
        assert chain(receipt.header, receipt.tokens, receipt.rows) == receipt.link
        for other in strangers(receipt):
            tried, caught = tried + 1, caught + (not replay(other, model, **options))
    print(f"{words}: {caught} of {tried} changes by a stranger are found", flush=True)
    lied = found = 0
    for receipt in receipts[::every]:
        for other in signers(receipt):
            lied, found = lied + 1, found + (not replay(other, model, **options))
    print(f"{words}: {found} of {lied} changes by the signer are found", flush=True)
    other_files = changed_files(folder, receipts[0], FILES)
    print(f"{words}: {other_files} of {FILES} changed weights are found; {time.process_time() - started:.0f} s")
    return whole == some == len(receipts) and (caught, found, other_files) == (tried, lied, FILES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("what", choices=("make", "check"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--engine", default="cpu", help="of check")
    parser.add_argument("--isa", help="instruction set of check, such as avx2 or portable")
    parser.add_argument(
        "--every", type=int, default=1, help="of how many receipts the signer's changes are tried on one"
    )
    args = parser.parse_args()
    if args.what == "make":
        make(args.folder)
        return
    if args.isa:
        os.environ["ASSAY_ISA"] = args.isa
    raise SystemExit(0 if check(args.folder, args.engine, args.every) else 1)


if __name__ == "__main__":
    main()
