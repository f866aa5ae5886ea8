"""A pipeline stage: some layers of a model in their own process, with the KV cache and the states of these layers.

    head → stage    wire (address of the next stage, the rows it needs) · work · copy (a page) · copy_state (a slot)
    stage → next    work (with the rows that were computed) · copy · copy_state
    stage → head    hello · done (the last stage: logits) · kept (nodes to keep) · failed · beat (heartbeat)

Work passes through the stages in the order in which it was sent. A stage computes one micro-batch while the next stage
computes the previous one. Every wiring of the stages has an epoch; frames of an earlier epoch are dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from assay import engines
from assay.cluster.chunk_frames import pack_chunks, unpack_chunks
from assay.cluster.frame_schema import checked
from assay.cluster.frames import Channel, ConnectionBroken, Frame, connect
from assay.cluster.local_model import open_here
from assay.engines.contract import Chunk, Output, PagedEngine
from assay.errors import AssayError

log = logging.getLogger("assay.cluster")
BEAT_S = 0.2
_NONE = np.zeros(0, np.int32)


class StageService:
    """The service. One thread runs the engine; micro-batches queue for it in order."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        opened = open_here(spec)
        given = opened.options
        self.graph = opened.model.graph.part(spec["first"], spec["last"])
        self.engine: PagedEngine = engines.create(
            given.engine or engines.default_name(), opened.model, n_pages=spec["n_pages"], precision=given.precision,
            threads=given.threads, kv_type=given.kv_type, graph=self.graph,
            state_slots=spec["state_slots"] if self.graph.state.per_sequence else None,
        )  # fmt: skip
        if self.engine.copy_page is None:
            raise AssayError(f"--split: engine {self.engine.name} cannot copy pages; use another engine")
        self._copies: dict[str, Callable[[int, int], None]] = {
            "copy": self.engine.copy_page,
            "copy_state": self.engine.copy_state if self.engine.state_slots else _copy_nothing,
        }
        self._token = str(spec["token"])
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="assay-stage")
        self._epoch = -1
        self._head: Channel | None = None
        self._next: Channel | None = None
        self._needed: list[str] = []  # values that later stages need
        self._last = True

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        self.engine.close()

    async def attend(self, channel: Channel) -> None:
        beats: asyncio.Task[None] | None = None
        try:
            while True:
                message = checked(await channel.receive(), "head to stage")
                if message.op == "hello":
                    engine = self.engine
                    channel.send(
                        {"op": "hello", "arithmetic": asdict(engine.arithmetic), "memory": asdict(engine.memory),
                         "dtype": engine.dtype.name, "isa": engine.isa, "state_slots": engine.state_slots}
                    )  # fmt: skip
                    beats = asyncio.ensure_future(self._beats(channel))
                elif message.op == "wire":
                    await self._wire(channel, message.head)
                elif message.head.get("epoch") != self._epoch:
                    continue
                elif message.op in self._copies:
                    await self._copy(self._copies[message.op], message)
                elif message.op == "work":
                    await self._work(message)
        finally:
            if beats:
                beats.cancel()

    async def _beats(self, channel: Channel) -> None:
        while True:
            channel.send({"op": "beat"})
            await asyncio.sleep(BEAT_S)

    async def _wire(self, head: Channel, found: Mapping[str, Any]) -> None:
        if self._next:
            self._next.close()
        self._next, self._head, self._epoch = None, head, found["epoch"]
        self._needed, self._last = found["needed"], found["next"] is None
        try:
            if not self._last:
                host, port = found["next"]
                self._next = await connect(host, port, self._token)
            head.send({"op": "wired", "epoch": self._epoch})
        except ConnectionBroken as error:
            head.send({"op": "failed", "epoch": self._epoch, "error": str(error)})

    async def _copy(self, copy: Callable[[int, int], None], message: Frame) -> None:
        """Copy a page or a state slot, behind earlier micro-batches, which may still read it; then pass it on."""
        try:
            await asyncio.wrap_future(self._thread.submit(copy, message.head["source"], message.head["to"]))
        except (AssayError, IndexError, ValueError) as error:
            raise ConnectionBroken(f"frame {message.op}: {error}") from None
        if self._next:
            self._next.send(message.head)

    async def _work(self, message: Frame) -> None:
        """Compute a micro-batch and pass it on. Frames of a connection are handled in turn, which keeps the order."""
        epoch, head = self._epoch, self._head
        assert head
        try:
            chunks = unpack_chunks(message.head["chunks"], message.arrays)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            self._failed(head, message, f"frame work: not chunks ({type(error).__name__}: {error})")
            raise ConnectionBroken(f"frame work: not chunks ({type(error).__name__}: {error})") from None
        try:
            outputs = await asyncio.wrap_future(self._thread.submit(self._compute, chunks, message.head["keep"]))
        except AssayError as error:
            self._failed(head, message, str(error))
            return
        except Exception as error:  # the head waits for an answer, which a closed connection to another stage is not
            log.exception("a micro-batch failed")
            self._failed(head, message, f"{type(error).__name__}: {error}")
            return
        if epoch != self._epoch:
            return
        asked = set(message.head["keep"])
        kept = {
            f"{i}/{name}": value for i, output in enumerate(outputs) for name, value in output.nodes.items()
            if name in asked
        }  # fmt: skip
        if kept:
            head.send({"op": "kept", "epoch": epoch, "id": message.head["id"]}, kept)
        if self._last:
            logits = {str(i): output.logits for i, output in enumerate(outputs)}
            head.send({"op": "done", "epoch": epoch, "id": message.head["id"]}, logits)
        elif self._next:
            _, arrays = pack_chunks([self._onward(c, o) for c, o in zip(chunks, outputs, strict=True)])
            self._next.send(message.head, arrays)
            await self._next.drain()

    def _failed(self, head: Channel, message: Frame, why: str) -> None:
        head.send({"op": "failed", "epoch": self._epoch, "id": message.head["id"], "error": why})

    def _compute(self, chunks: list[Chunk], keep: list[str]) -> list[Output]:
        own = [
            Chunk(
                c.tokens, c.start, c.pages, c.outputs if self._last else "all", c.positions,
                {name: c.rows[name] for name in self.graph.given}, state_slot=c.state_slot, prompt=c.prompt,
            )
            for c in chunks
        ]  # fmt: skip
        passed = [name for name in self._needed if name != self.graph.output]
        return self.engine.forward(own, [name for name in dict.fromkeys((*keep, *passed)) if name in self.graph])

    def _onward(self, chunk: Chunk, output: Output) -> Chunk:
        """A chunk with the rows that later stages need."""
        here = {**chunk.rows, **output.nodes, self.graph.output: output.logits}
        rows = {name: here[name] for name in self._needed if name in here}
        return replace(chunk, rows=rows)


def _copy_nothing(source: int, to: int) -> None:
    """The layers of this stage keep no state of a fixed size."""
