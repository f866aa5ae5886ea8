"""The wire: what is sent arrives to the bit, and what a stranger sends is refused."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.cluster import jobs
from assay.cluster.frames import TYPES, Channel, ConnectionBroken, Frame, accept, connect, pack, unpack
from assay.runtime.params import SamplerParams
from assay.runtime.sampler import Choice, Ranked
from assay.runtime.sequence import Job, Update
from assay.runtime.sequence_errors import DeadlinePassed, EngineFailed
from assay.runtime.thinking_budget import ThinkingBudget

json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)
heads = st.dictionaries(st.text(max_size=5).filter(lambda key: key != "arrays"), json, max_size=4)


@given(heads, st.lists(st.tuples(st.sampled_from(sorted(TYPES)), st.lists(st.integers(0, 4), max_size=3)), max_size=3))
def test_round_trip(head: dict[str, Any], shapes: list[tuple[str, list[int]]]) -> None:
    rng = np.random.default_rng(1)
    arrays = {f"a/{i}": rng.integers(0, 2, shape).astype(kind) for i, (kind, shape) in enumerate(shapes)}
    found = unpack(pack(head, arrays))
    assert found.head == head and list(found.arrays) == list(arrays)
    for name, value in arrays.items():
        assert found.arrays[name].dtype == value.dtype and np.array_equal(found.arrays[name], value)


@given(st.binary(max_size=60) | st.builds(lambda head, cut: pack(head)[:cut], heads, st.integers(0, 40)))
def test_any_bytes_are_a_message_or_one_error(body: bytes) -> None:
    with suppress(ConnectionBroken):
        assert isinstance(unpack(body), Frame)


@given(st.data())
def test_arrays_that_lie_are_refused(data: st.DataObject) -> None:
    """A shape that does not fit, a type that is not known, an object in the place of a number."""
    rows = [
        '"float32",[9999999999]',
        '"object",[1]',
        '"float32",[-1]',
        '"float32",["1"]',
        '"float32",[true]',
        '"float32"',
    ]
    lies = [*(f'{{"arrays":[["a",{row}]]}}' for row in rows), '{"arrays":7}', '{"arrays":[[]]}', "[]"]
    text = data.draw(st.sampled_from(lies))
    body = len(text).to_bytes(4, "little") + text.encode() + data.draw(st.binary(max_size=8))
    with pytest.raises(ConnectionBroken):
        unpack(body)


def talk(
    server: Callable[[Channel], Awaitable[None]], client: Callable[[int], Awaitable[None]], token: str = "right"
) -> list[str]:
    """Run both ends; what the server's end complained of."""
    complaints: list[str] = []

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await server(await accept(reader, writer, token))
        except ConnectionBroken as error:
            complaints.append(str(error))
        finally:
            writer.transport.abort()

    async def main() -> None:
        listening = await asyncio.start_server(meet, "127.0.0.1", 0)
        async with listening:
            await client(listening.sockets[0].getsockname()[1])
            await asyncio.sleep(0.05)

    asyncio.run(main())
    return complaints


async def echo(channel: Channel) -> None:
    while True:
        message = await channel.receive()
        channel.send(message.head, message.arrays)


def test_both_ends_prove_themselves() -> None:
    async def right(port: int) -> None:
        channel = await connect("127.0.0.1", port, "right")
        rows = np.random.default_rng(2).standard_normal((3, 7)).astype(np.float32)
        channel.send({"op": "x", "value": 0.1 + 0.2, "least": -math.inf}, {"rows": rows})
        found = await channel.receive()
        assert found.head == {"op": "x", "value": 0.1 + 0.2, "least": -math.inf}
        assert found.arrays["rows"].tobytes() == rows.tobytes()

    async def wrong(port: int) -> None:
        with pytest.raises(ConnectionBroken, match="token"):
            await connect("127.0.0.1", port, "wrong")

    talk(echo, right)
    assert talk(echo, wrong) == ["a client has a different token"]


def test_a_stranger_who_says_nothing_or_noise() -> None:
    async def silent(port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()

    async def noise(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n" * 9)
        await asyncio.sleep(0.05)
        assert len(await reader.read(100)) == 32  # a name and a random number, and no more
        writer.close()

    assert talk(echo, silent) == ["a client disconnected before it proved the token"]
    assert talk(echo, noise) == ["a client has a different token"]


@pytest.mark.parametrize("change", ["flip", "repeat"])
def test_a_changed_or_repeated_frame_breaks_the_connection(change: str) -> None:
    """An attacker between both ends can write to the connection but does not know the token."""
    broken: list[str] = []

    async def server(channel: Channel) -> None:
        try:
            while True:
                await channel.receive()
        except ConnectionBroken as error:
            broken.append(str(error))

    async def client(port: int) -> None:
        channel = await connect("127.0.0.1", port, "right")
        real: list[bytes] = []
        inner = channel._writer.write
        channel._writer.write = real.append  # type: ignore[method-assign, assignment]
        channel.send({"op": "x", "n": 1})
        frame = bytearray(real[0])
        if change == "flip":
            frame[-1] ^= 1
        else:
            inner(bytes(frame))
        inner(bytes(frame))
        await asyncio.sleep(0.05)

    talk(server, client)
    assert broken and "failed its authentication" in broken[0]


def test_a_server_with_another_token_is_not_believed() -> None:
    """Another process listens on a replica's port: the router refuses it, because it cannot prove the token."""
    with socket.socket() as fake:
        fake.bind(("127.0.0.1", 0))
        fake.listen()

        async def main() -> None:
            with pytest.raises(ConnectionBroken, match="no answer within"):
                await connect("127.0.0.1", fake.getsockname()[1], "right", timeout=0.2)

        asyncio.run(main())


def test_jobs_and_updates_cross_the_wire() -> None:
    params = SamplerParams(temp=0.3, dry_multiplier=0.5, dry_breakers={3: ((1, 2), ())}, logit_bias=((5, -math.inf),))
    until = time.monotonic() + 7
    job = Job(
        (1, 2, 3), params, 9, ("a", "é"), 2, keep=("l_out-0",), pooling="mean", show_special=True, ignore_eos=True,
        deadline=until, answered=(4, 5), owner=("c", "r"), receipt=True, second=2,
        thinking=ThinkingBudget(9, "<think>", "</think>", (6, 7), True),
    )  # fmt: skip
    assert {field.name for field in fields(Job)} == {
        *jobs._PLAIN,
        "ids",
        "params",
        "answered",
        "deadline",
        "constraint",
        "receipt",
        "thinking",
        "second",
        "adapters",  # this and the next are refused with --cluster
        "shift",
        "images",  # tests/cluster/test_pictures.py
    }
    head, arrays = jobs.from_job(job, 1 << 63)
    sent = unpack(pack(head, arrays))
    none: Any = None
    found = jobs.to_job(sent.head, sent.arrays, none)
    assert abs(found.deadline - job.deadline) < 1
    assert found.params.seed == 1 << 63 and found.params.dry_breakers == params.dry_breakers
    assert found.receipt
    assert Job(**{**vars(found), "deadline": job.deadline, "params": params}) == job
    older = jobs.to_job({**sent.head, "receipt": True}, sent.arrays, none)
    assert not older.receipt, "a router of another version gets no rows, because their hashes are others"
    for update in (
        Update(Choice(7, -0.1, (Ranked(7, -0.1), Ranked(8, -math.inf))), "é", "stop"),
        Update(None, "", "length"),
    ):
        assert jobs.to_update(unpack(pack(jobs.from_update(update))).head) == update
    for error in (DeadlinePassed("late"), EngineFailed("broken")):
        told = jobs.to_error(jobs.from_error(error))
        assert type(told) is type(error) and str(told) == str(error)
    assert isinstance(jobs.to_error(jobs.from_error(ZeroDivisionError("x"))), EngineFailed)


@given(heads)
def test_any_head_is_a_job_or_one_error(head: dict[str, Any]) -> None:
    none: Any = None
    with pytest.raises(ConnectionBroken):
        jobs.to_job(head, {}, none)
