"""An exported page in headless Chromium beside the cpu engine: text and hash of all logits of several prompts.

    python bench/browser.py smollm2                          10 prompts, 64 tokens each
    python bench/browser.py smollm2 --prompts 3 --tokens 16  a shorter run
    python bench/browser.py smollm2 --peer wllama/package    also the speed of wllama in the same browser
    python bench/browser.py smollm2 --screenshot page.png    served by python -m http.server, without any other host
    python bench/browser.py smollm2 --flag=--use-angle=vulkan --flag=--enable-features=Vulkan    on a GPU

Nothing but Python, the browser and the model is needed. Without a GPU, Chromium's adapter in software (SwiftShader)
runs the page. A peer is the unpacked npm package @wllama/wllama; it runs with WASM alone and with its WebGPU backend.
The exit code is 1 if a text or hash of the page differs from the cpu engine's.
"""

from __future__ import annotations

import argparse
import base64
import functools
import hashlib
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from assay.engines import create
from assay.engines.contract import Chunk, pages_for
from assay.engines.wgpu.exported_plan import KV_TYPE
from assay.library.web_export import export_web
from assay.runtime.opening import Opened, OpenOptions, open_model
from assay.text import encode_chat

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.chromium import Chromium

PROMPTS = (
    "Why is the sky blue?", "Name three rivers.", "Write a haiku about snow.", "What is 12 times 12?",
    "Translate 'good morning' into French.", "Who wrote Hamlet?", "List the planets.", "Explain recursion.",
    "What do bees eat?", "Tell me a joke.",
)  # fmt: skip


def expected(opened: Opened, prompt: str, tokens: int) -> tuple[str, str]:
    """The greedy text of the cpu engine, and the hash over the hashes of the logits of every step."""
    said = [{"role": "user", "content": prompt}]
    ids = encode_chat(opened.tokenizer, opened.template, said) if opened.template else opened.tokenizer.encode(prompt)
    engine = create("cpu", opened.model, n_pages=pages_for(opened.n_ctx), kv_type=KV_TYPE)
    pages = np.arange(pages_for(opened.n_ctx), dtype=np.int32)
    answered: list[int] = []
    hashes, following, start = [], list(ids), 0
    while len(answered) < tokens and start + len(following) <= opened.n_ctx:
        row = engine.forward([Chunk(np.array(following, np.int32), start, pages)])[0].logits[-1]
        hashes.append(hashlib.sha256(np.ascontiguousarray(row, np.float32).tobytes()).hexdigest())
        start += len(following)
        following = [int(row.argmax())]
        if following[0] in opened.tokenizer.eog:
            break
        answered += following
    engine.close()
    return opened.tokenizer.decode(answered, special=False), hashlib.sha256(" ".join(hashes).encode()).hexdigest()


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Files of the site, and of `places` by the first part of a path. Pages are isolated, so WASM may use threads."""

    places: ClassVar[dict[str, Path]] = {}

    def translate_path(self, path: str) -> str:
        _, first, *rest = path.split("?")[0].split("/")
        if first in self.places:
            return str(self.places[first].joinpath(*(part for part in rest if part not in ("", ".."))))
        return super().translate_path(path)

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def served(site: Path, **places: Path) -> Iterator[str]:
    """The address of a server of the site and these files or folders."""
    kind = type("Handler", (_Handler,), {"places": places})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(kind, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@contextmanager
def plainly_served(site: Path) -> Iterator[str]:
    """The address of `python -m http.server` in a folder."""
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "-d", str(site)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout
        port = re.search(r"port (\d+)", server.stdout.readline())
        assert port
        try:
            yield f"http://127.0.0.1:{port[1]}"
        finally:
            server.terminate()


@dataclass(frozen=True)
class Answer:
    """The page's answer to one prompt."""

    text: str
    hash: str
    seconds: float
    rate: float  # tokens a second after the first


def answers(browser: Chromium, url: str, prompts: Sequence[str], tokens: int, patience: float) -> Iterator[Answer]:
    """The page's answers, one after the other."""
    began = time.perf_counter()
    browser.open(f"{url}/")
    doing = ""
    while browser.evaluate("document.getElementById('send').disabled"):
        time.sleep(0.25)
        said = browser.evaluate("document.getElementById('facts').textContent")
        if said.split(",")[-1] != doing.split(",")[-1]:
            print(f"{time.perf_counter() - began:6.1f} s  {said}", flush=True)
        doing = said
        if browser.evaluate("document.getElementById('form').hidden"):
            raise RuntimeError(f"the page cannot run: {said}")
        if time.perf_counter() - began > patience:
            raise TimeoutError(f"the page is not ready after {patience:g} s: {said}")
    print(f"{time.perf_counter() - began:6.1f} s  {browser.evaluate(_FACTS)}", flush=True)
    for prompt in prompts:
        began = time.perf_counter()
        browser.evaluate(
            f"for (const [id, value] of [['prompt', {json.dumps(prompt)}], ['most', {tokens}]])"
            " document.getElementById(id).value = value;"
            " document.getElementById('facts').textContent = ''; document.getElementById('form').requestSubmit()"
        )
        browser.wait(f"!document.getElementById('send').disabled && {_FACTS} !== ''", patience)
        said, facts = browser.evaluate(f"[document.getElementById('answer').textContent, {_FACTS}]")
        found = re.search(r"then ([\d.]+) a second; hash of all logits (\w+)", facts)
        if not found:
            raise RuntimeError(f"the page says: {facts}")
        yield Answer(said, found[2], time.perf_counter() - began, float(found[1]))


_FACTS = "document.getElementById('facts').textContent"
_PEER = """(async () => {
  const { Wllama } = await import("/peer/esm/index.js");
  const lines = [];
  const keep = (...said) => lines.push(said.join(" "));
  const logger = { debug: keep, log: keep, warn: keep, error: keep };
  const wllama = new Wllama({ default: new URL("/peer/esm/wasm/wllama.wasm", location).href }, { logger });
  const began = performance.now();
  const blob = await (await fetch("/model.gguf")).blob();
  await wllama.loadModel([blob], OPTIONS);
  const opened = (performance.now() - began) / 1000;
  const found = [];
  for (const content of PROMPTS) {
    const reply = await wllama.createChatCompletion({
      messages: [{ role: "user", content }], max_tokens: TOKENS, temperature: 0, top_k: 1, cache_prompt: false,
    });
    const { predicted_per_second, prompt_per_second } = reply.timings ?? {};
    found.push([reply.choices[0].message.content, predicted_per_second, prompt_per_second]);
  }
  const devices = lines.filter((line) => /webgpu|offloaded|model buffer/i.test(line)).slice(0, 8);
  return { opened, threads: wllama.getNumThreads(), found, devices };
})()"""


def peer(browser: Chromium, url: str, prompts: Sequence[str], tokens: int, layers: int, patience: float) -> str:
    """wllama's decode speed, with this many layers on WebGPU."""
    browser.open(f"{url}/plan.json")
    options = {"n_ctx": 256, "n_gpu_layers": layers, "n_threads": os.cpu_count()}
    words = {"OPTIONS": json.dumps(options), "PROMPTS": json.dumps(list(prompts)), "TOKENS": str(tokens)}
    script = re.sub("|".join(words), lambda m: words[m[0]], _PEER)
    found = browser.evaluate(script, timeout=patience)
    rates = [rate for _, rate, _ in found["found"] if rate]
    prompt = [rate for _, _, rate in found["found"] if rate]
    print(*(f"  {line[:110]}" for line in found["devices"]), sep="\n")
    return (
        f"wllama, {'WebGPU' if layers else 'WASM'}, {found['threads']} threads: opened in {found['opened']:.1f} s, "
        f"decode {np.median(rates):.1f} tok/s (median of {len(rates)}), prompt {np.median(prompt):.0f} tok/s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="number of prompts; default 10")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer; default 64")
    parser.add_argument("--chromium", default=os.environ.get("CHROMIUM") or shutil.which("chromium") or "chromium")
    parser.add_argument("--flag", action="append", default=[], help="a further flag of Chromium; may be repeated")
    parser.add_argument("--peer", type=Path, help="folder of the npm package @wllama/wllama, to measure beside it")
    parser.add_argument("--screenshot", type=Path, help="keep a picture of the page after the last answer, as PNG; the "
                        "site is served by python -m http.server, and the browser finds no other host")  # fmt: skip
    parser.add_argument("--prompt", action="append", help="another prompt than the usual ones; may be repeated")
    parser.add_argument("--log", default=os.devnull, help="file for what Chromium prints")
    parser.add_argument("--patience", type=float, default=1200, help="seconds for opening, and for an answer")
    args = parser.parse_args()
    opened = open_model(args.model, OpenOptions(ctx_size=256))
    prompts = args.prompt or PROMPTS[: args.prompts]
    flags = [*args.flag, *(["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"] if args.screenshot else [])]
    wrong, rates = 0, []
    with tempfile.TemporaryDirectory() as folder:
        export_web(opened, Path(folder))
        places = {"peer": args.peer} if args.peer else {}
        own = served(Path(folder), **places, **{"model.gguf": opened.model.file.path})
        with plainly_served(Path(folder)) if args.screenshot else own as url:
            with Chromium(args.chromium, flags, log=args.log) as browser:
                found = answers(browser, url, prompts, args.tokens, args.patience)
                for prompt, answer in zip(prompts, found, strict=True):
                    text, hashed = expected(opened, prompt, args.tokens)
                    same = answer.text == text, answer.hash == hashed
                    wrong += not all(same)
                    rates.append(answer.rate)
                    print(f"{prompt!r}: text {_SAID[same[0]]}, logits {_SAID[same[1]]}, {answer.seconds:.2f} s, "
                          f"{answer.rate:.2f} tok/s", flush=True)  # fmt: skip
                if args.screenshot:
                    picture = browser.call("Page.captureScreenshot", captureBeyondViewport=True)
                    args.screenshot.write_bytes(base64.b64decode(picture["data"]))
            print(f"{len(prompts) - wrong} of {len(prompts)} prompts equal, {args.tokens} tokens each at most; "
                  f"decode {np.median(rates):.2f} tok/s (median)", flush=True)  # fmt: skip
            for layers in (0, 99) if args.peer else ():
                with Chromium(args.chromium, args.flag, log=args.log) as browser:
                    try:
                        print(peer(browser, url, prompts, args.tokens, layers, args.patience), flush=True)
                    except (RuntimeError, TimeoutError) as error:
                        print(f"wllama with {layers} layers on WebGPU: {error}", flush=True)
    return 1 if wrong else 0


_SAID = {True: "equal", False: "DIFFERENT"}


if __name__ == "__main__":
    sys.exit(main())
