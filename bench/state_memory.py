"""The memory of states and snapshots of a hybrid model, and the tokens that snapshots save, without any weights.

    python bench/state_memory.py                            # a 9B hybrid (Qwen3.5-9B's shape), 32,768 tokens of context
    python bench/state_memory.py --slots 8 20 64 --context 32768 --conversations 8

The graph is built from the shape alone. The estimates are those of `assay inspect` and `assay serve`. The conversations
go through the real allocator of pages and state slots, which holds no numbers: each has the same system prompt of 2,048
tokens, and then turns of 1,000 tokens and answers of 200 until the context is full. Four run at a time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from assay.engines.contract import PAGE, pages_for
from assay.engines.plan.state_layout import StateMemory, page_bytes, state_memory
from assay.graph import Graph
from assay.models.catalogue import ARCHITECTURES, example
from assay.runtime.cache_slots import StateSlots
from assay.runtime.pages import Pages

SYSTEM, ASKED, ANSWERED = 2048, 1000, 200  # tokens
AT_ONCE = 4  # conversations that run together
CHUNK = 128  # prompt tokens of a step, as in the server


def hybrid_9b() -> Graph:
    """32 layers, of which every fourth has attention; 32 value heads and 16 key heads of 128 in the others."""
    row = ARCHITECTURES["qwen35"]
    sizes = replace(
        row.sizes, n_layer=32, n_embd=4096, n_head=16, n_head_kv=4, n_embd_head=256, n_embd_head_v=256, n_ff=12288,
        n_vocab=1024, n_ctx=262144, n_rot=64,
    )  # fmt: skip
    keys = {
        "ssm.conv_kernel": 4, "ssm.inner_size": 4096, "ssm.state_size": 128, "ssm.time_step_rank": 32,
        "ssm.group_count": 16, "full_attention_interval": 4, "rope.dimension_sections": [11, 11, 10, 0],
    }  # fmt: skip
    return example(replace(row, sizes=sizes, keys={**row.keys, **keys}))[1]


class OldestFirst(StateSlots):
    """For comparison: the least recently used snapshot goes first, superseded or not."""

    def supersede(self, pages: Iterable[int]) -> None: ...


@dataclass
class Tally:
    """The cost of a run of conversations."""

    asked: int = 0  # prompt tokens of all turns
    computed: int = 0  # of them
    most: int = 0  # snapshots at once
    evicted: int = 0

    @property
    def reused(self) -> float:
        return 1 - self.computed / self.asked


def conversations(
    slots: int, context: int, count: int, make: Callable[[int, Callable[[int, int], None]], StateSlots] = StateSlots
) -> Tally:
    """Turns of several conversations, four at a time, through pages and state slots."""
    rng, tally = np.random.default_rng(0), Tally()
    states = make(slots, lambda source, to: None)
    pages = Pages(AT_ONCE * pages_for(context), states=states)
    system = rng.integers(0, 1000, SYSTEM).tolist()
    texts = [[*system, *rng.integers(0, 1000, context).tolist()] for _ in range(count)]
    end = SYSTEM + ASKED
    while end + ANSWERED <= context:
        for first in range(0, count, AT_ONCE):
            turns = [turn(pages, text, end, tally) for text in texts[first : first + AT_ONCE]]
            while turns:  # one step of each in turn
                turns = [going for going in turns if next(going, None)]
                tally.most = max(tally.most, states.snapshots)
        end += ANSWERED + ASKED
    pages.check()
    tally.evicted = states.use.evicted
    return tally


def turn(pages: Pages, text: list[int], end: int, tally: Tally) -> Iterator[bool]:
    """A prompt in the steps of the server's planner, then an answer token by token."""
    lease = pages.open(text[:end])
    tally.asked += end
    tally.computed += end - lease.length
    while lease.length < end:
        to = pages.next_place(lease, min(lease.length + CHUNK, end))
        last = (end - 1) // PAGE * PAGE
        if to == end and lease.length < last:
            to = last
        pages.reserve(lease, to - lease.length)
        pages.commit(lease, text[lease.length : to])
        yield True
    for token in text[end : end + ANSWERED]:
        pages.reserve(lease, 1)
        pages.commit(lease, [token])
        yield True
    pages.close(lease)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slots", type=int, nargs="*", default=[], help="numbers of state slots beside the default")
    parser.add_argument("--context", type=int, default=32768)
    parser.add_argument("--conversations", type=int, default=8)
    args = parser.parse_args()
    graph = hybrid_9b()
    default = state_memory(graph)
    rows = page_bytes(graph, "f16") * pages_for(args.context)
    print(
        f"one state: {default.bytes_per_slot / 1e6:.1f} MB; rows of {args.context:,} tokens, f16: {rows / 1e9:.2f} GB"
    )
    print(f"{args.conversations} conversations of {args.context:,} tokens, {AT_ONCE} at a time\n")
    print("slots        memory   snapshots   evicted   prompt tokens reused")
    for slots in dict.fromkeys((default.slots, *(args.slots or (AT_ONCE + 1, 8, 64)))):
        memory = StateMemory(slots, default.bytes_per_slot).bytes / 1e9
        for make, mark in ((StateSlots, ""), (OldestFirst, " (oldest first)")):
            if slots == default.slots or make is StateSlots:
                tally = conversations(slots, args.context, args.conversations, make)
                print(f"{slots:5} {memory:10.2f} GB {tally.most:9} {tally.evicted:9} {tally.reused:15.1%}{mark}")


if __name__ == "__main__":
    main()
