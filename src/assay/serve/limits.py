"""Every limit of the server on untrusted clients, in one table. Ordinary clients stay below all of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerLimits:
    """Sizes in bytes or items, times in seconds."""

    # One request.
    body: int = 2 << 20
    messages: int = 1024
    tools: int = 128  # agents with a few MCP servers offer more than 64.
    prompts: int = 64  # prompts in one completion or embedding request.
    documents: int = 256  # of one rerank request.
    choices: int = 16  # largest n.
    stops: int = 16
    stop_length: int = 256
    logprobs: int = 20
    bias: int = 1024  # entries of logit_bias.
    schema: int = 64 << 10  # bytes of a JSON schema or a grammar.
    template_s: float = 5.0  # time to render the chat template.
    text: int = 256 << 10  # characters of a /tokenize request.
    ids: int = 256 << 10  # tokens of a /detokenize request.
    pieces: int = 8 << 10  # tokens that are returned with their pieces.
    scores: int = 256 << 10  # log-probabilities of the prompts, or of the answers, of a reply that is held whole.
    nodes: int = 64 << 10  # arrays, objects, keys and texts in a body.
    items: int = 320 << 10  # items of arrays and fields of objects in a body.
    depth: int = 128  # nesting of arrays and objects in a body.
    trace_tokens: int = 128  # at most `chunk`.
    lens_positions: int = 64
    pictures: int = 16  # of one request.
    picture_bytes: int = 20 << 20  # bytes of a picture's file.
    picture_body: int = 64 << 20  # `body` of a server that takes pictures.
    examine_s: float = 180.0  # time to diagnose one dump.
    examine_memory: int = 4 << 30  # bytes that the process that diagnoses may allocate.
    examine_tokens: int = 1024  # tokens of a dump that is diagnosed.
    browser_s: float = 600.0  # time to make the plan of a page of --browser.
    browser_context: int = 2048  # positions of such a page, which has a cache of its own.
    browser_packed: int = 256 << 20  # bytes of such a plan on disk.
    upload: int = 256 << 20  # bytes of an uploaded dump.
    upload_s: float = 120.0  # time for an upload to arrive.
    request_s: float = 600.0  # deadline: from arrival to the last token.

    # All requests.
    bodies: int = 128 << 20  # bodies of all requests in progress; small ones are always received.

    # The queue.
    running: int = 32
    waiting: int = 256
    chunk: int = 128  # prompt tokens computed per step, over all requests.

    # The connection.
    headers: int = 32 << 10
    header_lines: int = 128
    header_s: float = 10.0  # from the first byte to the last header.
    body_s: float = 30.0
    idle_s: float = 30.0  # between two requests.
    connections: int = 512  # open connections; a new one evicts the oldest idle one.
    spare: int = 512  # further connections: only /health is answered, the rest gets 503.
    buffer: int = 2048  # updates queued for a client that does not read.
    ping_s: float = 15.0  # silence of an event stream after which a ping is sent.
    stall_s: float = 30.0  # time for a client to take a write.
    load_s: float = 120.0  # time to wait for memory to load a model.
    drain_s: float = 30.0  # time to finish requests after SIGTERM.
