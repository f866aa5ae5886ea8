"""Every bound the server puts on a stranger, in one table. None of them can be reached by an ordinary client."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerLimits:
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
    template_s: float = 5.0  # rendering the messages
    text: int = 256 << 10  # characters that /tokenize takes
    ids: int = 256 << 10  # tokens that /detokenize takes
    pieces: int = 8 << 10  # tokens that are given back with their pieces
    scores: int = 128 << 10  # log-probabilities of the prompts of one request
    nodes: int = 64 << 10  # arrays and objects in a body
    trace_tokens: int = 128  # at most a chunk
    lens_positions: int = 64
    examine_s: float = 180.0  # of one dump
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
    connections: int = 512  # requests at once; of idle connections the oldest goes when another comes
    spare: int = 512  # connections beyond them: /health is answered, anything else is 503
    buffer: int = 2048  # updates waiting for a reader that does not read
    stall_s: float = 30.0  # a write that the reader does not take
    load_s: float = 120.0  # waiting for room to load another model
    drain_s: float = 30.0  # after SIGTERM
