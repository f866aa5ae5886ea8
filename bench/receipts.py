"""What receipts cost: in decode, with one stream and with many, and to verify ten positions of a long answer.

    python bench/receipts.py [MODEL] [--tokens 64] [--streams 32] [--long 1000] [--rounds 3] [--threads 1]

Rounds with and without receipts alternate. Two times of the median round are given: by the clock, and processor time of
this process, in which other work on the machine does not count. The share of the hashes is the time inside `row_digest`
over all processor time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from assay.runtime import hub, sequence
from assay.runtime.opening import OpenOptions, open_model
from assay.runtime.params import SamplerParams
from assay.runtime.receipt_replay import replay
from assay.runtime.receipts import Receipt, header_of, make_receipt, row_digest
from assay.runtime.scheduler import Scheduler, deliver
from assay.runtime.sequence import Job

PROMPT = "The history of the bridge begins with a ferry, which"


class Hashing:
    """`row_digest` with a clock."""

    seconds = 0.0

    def __call__(self, logits: Any) -> bytes:
        started = time.thread_time()
        found = row_digest(logits)
        self.seconds += time.thread_time() - started
        return found


def generate(on: Any, engine: Any, n: int, tokens: int, receipt: bool) -> tuple[float, float, list[Any]]:
    """Seconds of the decode steps by the clock and of the processor, and the sequences."""
    scheduler = Scheduler(engine, on.tokenizer, n_ctx=on.n_ctx, running=n)
    ids = tuple(on.tokenizer.encode(PROMPT))
    jobs = [Job(ids, SamplerParams(temp=0.8, seed=i), tokens, ignore_eos=True, receipt=receipt) for i in range(n)]
    sequences = [scheduler.make(job, lambda update: None) for job in jobs]
    scheduler.add(sequences)
    while not all(s.generated for s in sequences):
        deliver(scheduler.step())
    started, clock = time.process_time(), time.perf_counter()
    while not all(s.finished for s in sequences):
        deliver(scheduler.step())
    return time.perf_counter() - clock, time.process_time() - started, sequences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--long", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    on = open_model(hub.resolve(args.model), OpenOptions(threads=args.threads, cache_size=16384))
    engine, hashing = on.engine(), Hashing()
    sequence.row_digest = hashing  # type: ignore[assignment]
    for n, tokens in ((1, args.tokens), (args.streams, max(4, args.tokens // 8))):
        plain, signed = [], []
        hashing.seconds = 0.0
        generate(on, engine, n, 3, True)
        hashing.seconds = 0.0
        for _ in range(args.rounds):
            plain.append(generate(on, engine, n, tokens, False)[:2])
            signed.append(generate(on, engine, n, tokens, True)[:2])
        clock, processor = (
            statistics.median(s) / statistics.median(p) - 1
            for s, p in zip(zip(*signed, strict=True), zip(*plain, strict=True), strict=True)
        )
        share = hashing.seconds / sum(took for _, took in signed)
        each = 1e3 * statistics.median(took for took, _ in plain) / (tokens - 1)
        print(
            f"{n} streams: {each:.1f} ms a step; with receipts {clock:+.1%} by the clock, {processor:+.1%} of processor"
            f" time; hashes {share:.1%}", flush=True,
        )  # fmt: skip
    if args.long:
        clock, seconds, (made,) = generate(on, engine, 1, args.long, True)
        receipt = _receipt(on, engine, made)
        on.file.sha256  # noqa: B018 - hashed once, and kept
        started, began = time.process_time(), time.perf_counter()
        found = replay(receipt, on.model, positions=10, seed=1, threads=args.threads)
        took, waited = time.process_time() - started, time.perf_counter() - began
        print(
            f"{args.long} tokens in {clock:.1f} s by the clock and {seconds:.1f} s of processor time; ten positions in "
            f"{waited:.1f} and {took:.1f} s: {waited / clock:.2f} and {took / seconds:.2f} of it ({found})"
        )
    engine.close()


def _receipt(on: Any, engine: Any, made: Any) -> Receipt:
    header = header_of(on.file.sha256, engine.arithmetic, made.job.params, made.seed, made.job.ids, constrained=False)
    return make_receipt(header, made.job.ids, made.ids[made.n_prompt :], made.row_digests)


if __name__ == "__main__":
    main()
