"""Every bound the server puts on a stranger, in one table. None of them can be reached by an ordinary client."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Sizes in bytes or items, times in seconds."""

    # One request
    body: int = 2 << 20
    messages: int = 1024
    tools: int = 64
    prompts: int = 64  # texts in one completion or embedding request
    choices: int = 16  # n
    stops: int = 16
    stop_length: int = 256
    logprobs: int = 20
    bias: int = 1024  # entries of logit_bias
    schema: int = 64 << 10  # bytes of a JSON schema or a grammar
    grammar_s: float = 5.0  # compiling it
    template_s: float = 5.0  # rendering the messages
    trace_tokens: int = 128  # at most a chunk
    lens_positions: int = 64
    request_s: float = 600.0  # from arrival to the last token

    # The queue
    running: int = 32
    waiting: int = 256
    chunk: int = 128  # prompt tokens computed in one step, of all requests together

    # The connection
    headers: int = 32 << 10
    header_s: float = 10.0  # from the first byte to the last header
    body_s: float = 30.0
    idle_s: float = 30.0  # between two requests
    connections: int = 512
    buffer: int = 2048  # updates waiting for a reader that does not read
    stall_s: float = 30.0  # a write that the reader does not take
    load_s: float = 120.0  # waiting for room to load another model
    drain_s: float = 30.0  # after SIGTERM
