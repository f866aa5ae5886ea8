"""A stock llama.cpp behind HTTP, with one option changed: the opponent of an audit.

    python -m tests.verify.endpoint.stock_server MODEL '{"rope_freq_base": 10000}' '{"temperature": 0.8}'

This is llama-server's own HTTP, as xllamacpp starts it. The first object has its options; where the second is empty, no
proxy stands before it. The second has changes that a dishonest proxy makes to requests:
`temperature` and other settings of the sampler, `system` (a hidden system message), `drop` (keys removed from answers,
such as logprobs), `before` (text put before prompts; BOS is that token), `cut` (the last tokens of a text that are
kept), `ids` (token ids are shown where `return_token_ids` asks for them, as vLLM does). With `others`, as many clients
chat with the server all the time, so that it computes their tokens in one batch with the auditor's.
The address is printed; the process ends with its standard input.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from assay.gguf import open_file
from assay.text import Tokenizer

PENALTIES = ("repeat_penalty", "frequency_penalty", "presence_penalty")


def changed(body: dict[str, Any], proxy: dict[str, Any], encode: Any = None) -> dict[str, Any]:
    """A request as a dishonest proxy passes it on. `encode` makes the ids of a text."""
    body = {**body, **{k: proxy[k] for k in ("temperature", "top_k", "top_p", "min_p", *PENALTIES) if k in proxy}}
    if "seed" in proxy and body.get("temperature"):
        body["seed"] = proxy["seed"]
    if "system" in proxy and "messages" in body:
        body["messages"] = [{"role": "system", "content": proxy["system"]}, *body["messages"]]
    if body.pop("return_token_ids", False) and proxy.get("ids"):
        body |= {"logprobs": True, "top_logprobs": 1} if "messages" in body else {"logprobs": 1}
    if "before" in proxy and isinstance(body.get("prompt"), str):
        body["prompt"] = proxy["before"] + body["prompt"]
    if "cut" in proxy and isinstance(body.get("prompt"), str):
        body["prompt"] = encode(body["prompt"])[-proxy["cut"] :]
    return body


def reduced(found: dict[str, Any], proxy: dict[str, Any]) -> dict[str, Any]:
    """An answer without what the proxy hides, and rounded as it rounds."""
    if proxy.get("ids"):
        for choice in found.get("choices", ()):
            choice["token_ids"] = [step["id"] for step in (choice.get("logprobs") or {}).get("content", ())]
    for key in proxy.get("drop", ()):
        found.pop(key, None)
        for choice in found.get("choices", ()):
            choice.pop(key, None)
    if "digits" in proxy:
        found = json.loads(json.dumps(found), parse_float=lambda x: round(float(x), proxy["digits"]))
    return found


def chat_forever(server: Any, seed: int) -> None:
    """Another client of the server."""
    for i in itertools.count(seed * 1000):
        body = {"prompt": f"{i} stories begin with", "max_tokens": 16 + i % 7, "temperature": 1.0, "seed": i}
        with suppress(RuntimeError):
            server.handle_completions(body)


def settings_of(library: Any, path: str, options: dict[str, Any]) -> Any:
    """llama-server's settings: its own defaults (four slots that share one cache, the model's context), on one thread.

    `sampling.NAME` is a default of the sampler, for requests that do not set it.
    """
    settings = library.CommonParams()
    settings.model.path = path
    settings.n_parallel, settings.kv_unified = 4, True
    settings.n_gpu_layers, settings.verbosity, settings.port = 0, -1, 0
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    for key, value in options.items():
        *inner, name = key.split(".")
        if name.startswith("cache_type"):
            value = getattr(library.ggml_type, f"GGML_TYPE_{value.upper()}")
        setattr(getattr(settings, inner[0]) if inner else settings, name, value)
    return settings


def passed_on(url: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The code and the answer of the server behind a proxy."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return 200, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def main() -> None:
    import xllamacpp as library

    path, options, proxy = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    server = library.Server(settings_of(library, path, options))
    for seed in range(proxy.pop("others", 0)):
        threading.Thread(target=chat_forever, args=(server, seed), daemon=True).start()
    behind = server.listening_address
    if not proxy:
        print(behind, flush=True)
        sys.stdin.read()
        return
    tokenizer = Tokenizer.from_gguf(open_file(Path(path)))
    encode, bos = tokenizer.encode, tokenizer.bos
    if proxy.get("before") == "BOS" and bos is not None:
        proxy["before"] = tokenizer.piece(bos).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = changed(json.loads(self.rfile.read(int(self.headers["Content-Length"]))), proxy, encode)
            code, found = passed_on(behind + self.path, body)
            data = json.dumps(reduced(found, proxy) if code == 200 else found).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_args: object) -> None:
            return

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{http.server_address[1]}", flush=True)
    sys.stdin.read()


@contextmanager
def stock(path: Path, options: dict[str, Any] | None = None, proxy: dict[str, Any] | None = None) -> Iterator[str]:
    """The address of a running process."""
    words = [str(path), json.dumps(options or {}), json.dumps(proxy or {})]
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("http://"):
                yield line.strip()
                return
        raise AssertionError("the server did not start")
    finally:
        process.communicate("")


if __name__ == "__main__":
    main()
