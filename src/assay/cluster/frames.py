"""The wire between router, replicas and stages: mutually authenticated frames over TCP.

    frame   = length (u32, of what follows) | mac (16 bytes) | body
    body    = length (u32) | JSON object | arrays, one after the other

Both ends know a token. Each proves it by answering a challenge, so the token never crosses the wire. The keys of the
connection are derived from the two nonces. Every frame carries a MAC (BLAKE2b) over its sequence number and its body:
a forged, replayed or corrupted frame breaks the connection and cannot change an answer. Frames are not encrypted.
A frame carries no code, only numbers, text and arrays of a few known types.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError

Array = NDArray[Any]
LARGEST = 1 << 30  # bytes of a frame
LARGEST_HEAD = 1 << 24  # bytes of its JSON: reading more would stall the event loop
BUFFERED = 512 << 20  # bytes buffered for a slow peer before the connection is dropped
HELLO_S = 2.0  # seconds for the peer to prove the token
TYPES = {name: np.dtype(name) for name in ("float32", "float64", "float16", "int32", "int64", "uint8", "bool")}
_MAGIC = b"assay-frames-1\n\0"  # 16 bytes
_NONCE, _PROOF, _MAC = 16, 32, 16
_U32 = struct.Struct("<I")


class ConnectionBroken(AssayError):
    """The connection cannot continue: it was cut, or the peer failed to authenticate."""


class MalformedFrame(ConnectionBroken):
    """The peer has proved the token and sent a frame that it should not send: the peer is broken, not the network."""


@dataclass(frozen=True)
class Frame:
    """A decoded frame: its JSON object and its arrays."""

    head: dict[str, Any]
    arrays: dict[str, Array] = field(default_factory=dict)

    @property
    def op(self) -> str:
        return str(self.head.get("op"))


def pack(head: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> bytes:
    """The body of a frame."""
    given = {name: np.asarray(value, order="C") for name, value in (arrays or {}).items()}
    for name, value in given.items():
        if value.dtype.name not in TYPES:
            raise ConnectionBroken(
                f"frame: array {name} cannot be sent (found {value.dtype}, expected {', '.join(TYPES)})"
            )
    listed = [[name, value.dtype.name, list(value.shape)] for name, value in given.items()]
    text = json.dumps({**head, "arrays": listed} if given else dict(head), separators=(",", ":")).encode()
    if len(text) > LARGEST_HEAD:
        raise ConnectionBroken(f"frame: too much JSON (found {len(text)} bytes, at most {LARGEST_HEAD})")
    return b"".join((_U32.pack(len(text)), text, *(value.tobytes() for value in given.values())))


def unpack(body: bytes) -> Frame:
    """Decode the body of a frame. Anything that `pack` would not write is refused."""
    try:
        (size,) = _U32.unpack_from(body)
        if size > len(body) - 4:
            raise ValueError("shorter than its length field")
        if size > LARGEST_HEAD:
            raise ValueError(f"{size} bytes of JSON, at most {LARGEST_HEAD}")
        head = json.loads(body[4 : 4 + size])
        if not isinstance(head, dict):
            raise ValueError("not an object")
        arrays, at = {}, 4 + size
        for name, kind, shape in head.pop("arrays", ()):
            if kind not in TYPES or not isinstance(name, str) or not all(type(n) is int and n >= 0 for n in shape):
                raise ValueError("not an array")
            count = 1
            for n in shape:
                count *= n
            end = at + count * TYPES[kind].itemsize
            if end > len(body):
                raise ValueError("shorter than its arrays")
            arrays[name] = np.frombuffer(body, TYPES[kind], count, at).reshape(shape)
            at = end
        if at != len(body):
            raise ValueError("longer than its arrays")
    except (ValueError, TypeError, RecursionError, struct.error) as error:
        raise MalformedFrame(f"frame: cannot be read ({error})") from None
    return Frame(head, arrays)


class Channel:
    """A connection that carries frames both ways. `send` never waits; a peer that does not read is dropped."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, keys: tuple[bytes, bytes]) -> None:
        self._reader, self._writer = reader, writer
        self._out, self._in = keys
        self._sent = self._got = 0
        raw = writer.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def peer(self) -> str:
        name = self._writer.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if name else "?"

    def send(self, head: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> None:
        body = pack(head, arrays)
        if len(body) + _MAC > LARGEST:
            raise ConnectionBroken(f"frame: too large (found {len(body)} bytes, at most {LARGEST - _MAC})")
        if self._writer.is_closing():
            return
        mac = _mac(self._out, self._sent, body)
        self._sent += 1
        self._writer.write(_U32.pack(_MAC + len(body)) + mac + body)
        if self._writer.transport.get_write_buffer_size() > BUFFERED:
            self._writer.transport.abort()

    async def drain(self) -> None:
        """Wait until the write buffer is mostly empty."""
        with suppress(OSError):
            await self._writer.drain()

    async def receive(self) -> Frame:
        try:
            (size,) = _U32.unpack(await self._reader.readexactly(4))
            if not _MAC + 4 <= size <= LARGEST:
                raise ConnectionBroken(f"frame: of {size} bytes (expected {_MAC + 4} to {LARGEST})")
            data = await self._reader.readexactly(size)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise ConnectionBroken(f"connection to {self.peer}: cut ({error})") from None
        mac, body = data[:_MAC], data[_MAC:]
        if not hmac.compare_digest(mac, _mac(self._in, self._got, body)):
            raise ConnectionBroken(f"connection to {self.peer}: a frame failed its authentication (MAC)")
        self._got += 1
        return unpack(body)

    async def __aiter__(self) -> AsyncIterator[Frame]:
        """Every message until the connection breaks."""
        while True:
            try:
                yield await self.receive()
            except ConnectionBroken:
                return

    def close(self) -> None:
        """Abort the connection without flushing, because the peer may be gone."""
        self._writer.transport.abort()


async def connect(host: str, port: int, token: str, *, timeout: float = HELLO_S) -> Channel:
    """Connect, and return a channel once both ends have proved the token."""
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                hello = await reader.readexactly(len(_MAGIC) + _NONCE)
                if not hello.startswith(_MAGIC):
                    raise ConnectionBroken(f"{host}:{port}: is not an assay service")
                nonces = hello[len(_MAGIC) :] + secrets.token_bytes(_NONCE)
                writer.write(nonces[_NONCE:] + _proof(token, b"client", nonces))
                if not hmac.compare_digest(await reader.readexactly(_PROOF), _proof(token, b"server", nonces)):
                    raise ConnectionBroken(f"{host}:{port}: has a different token")
            except BaseException:
                writer.transport.abort()
                raise
    except asyncio.IncompleteReadError:
        raise ConnectionBroken(
            f"{host}:{port}: hung up before it had shown its token; it may have another one"
        ) from None
    except TimeoutError:
        raise ConnectionBroken(f"{host}:{port}: no answer within {timeout:g} s") from None
    except OSError as error:
        raise ConnectionBroken(f"{host}:{port}: {error.strerror or error}") from None
    return Channel(reader, writer, (_key(token, b"to server", nonces), _key(token, b"to client", nonces)))


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> Channel:
    """The server's end of `connect`. A client without the token sees only a random nonce."""
    nonce = secrets.token_bytes(_NONCE)
    writer.write(_MAGIC + nonce)
    try:
        async with asyncio.timeout(HELLO_S):
            answer = await reader.readexactly(_NONCE + _PROOF)
    except (OSError, asyncio.IncompleteReadError, TimeoutError):
        raise ConnectionBroken("a client disconnected before it proved the token") from None
    nonces = nonce + answer[:_NONCE]
    if not hmac.compare_digest(answer[_NONCE:], _proof(token, b"client", nonces)):
        raise ConnectionBroken("a client has a different token")
    writer.write(_proof(token, b"server", nonces))
    return Channel(reader, writer, (_key(token, b"to client", nonces), _key(token, b"to server", nonces)))


def _proof(token: str, who: bytes, nonces: bytes) -> bytes:
    return hmac.digest(token.encode(), b"assay proof " + who + nonces, "sha256")


def _key(token: str, what: bytes, nonces: bytes) -> bytes:
    return hmac.digest(token.encode(), b"assay key " + what + nonces, "sha256")


def _mac(key: bytes, number: int, body: bytes) -> bytes:
    digest = blake2b(number.to_bytes(8, "little"), key=key, digest_size=_MAC)
    digest.update(body)
    return digest.digest()
