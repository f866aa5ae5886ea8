"""An exported page in headless Chromium beside the cpu engine: text and hash of all logits of several prompts.

    python bench/browser.py smollm2                          10 prompts, 64 tokens each
    python bench/browser.py smollm2 --prompts 3 --tokens 16  a shorter run

Chromium's adapter in software (SwiftShader) takes seconds for a token of SmolLM2. The exit code is 1 if a text or hash
differs.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import http.server
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from assay.engines import create
from assay.engines.contract import Chunk, pages_for
from assay.engines.wgpu.exported_plan import KV_TYPE
from assay.library.web_export import chat_frame, export_web
from assay.runtime.opening import Opened, OpenOptions, open_model

PROMPTS = (
    "Why is the sky blue?", "Name three rivers.", "Write a haiku about snow.", "What is 12 times 12?",
    "Translate 'good morning' into French.", "Who wrote Hamlet?", "List the planets.", "Explain recursion.",
    "What do bees eat?", "Tell me a joke.",
)  # fmt: skip


def expected(opened: Opened, prompt: str, tokens: int) -> tuple[str, str]:
    """The greedy text of the cpu engine, and the hash over the hashes of the logits of every step."""
    frame = chat_frame(opened.template) if opened.template else {"before": "", "after": ""}
    ids = opened.tokenizer.encode(f"{frame['before']}{prompt}{frame['after']}", add_special=False)
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


def answers(site: Path, prompts: tuple[str, ...], tokens: int) -> list[tuple[str, str, float]]:
    """Text, hash and seconds of each prompt on the page."""
    from playwright.sync_api import sync_playwright

    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found = []
    with sync_playwright() as p:
        options: dict[str, Any] = {"args": ["--no-sandbox", "--enable-unsafe-webgpu"]}
        browser = p.chromium.launch(executable_path=shutil.which("chromium"), **options)
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        page.wait_for_function("!document.getElementById('send').disabled", timeout=600_000)
        print(page.evaluate("document.getElementById('facts').textContent"), flush=True)
        for prompt in prompts:
            began = time.perf_counter()
            page.fill("#prompt", prompt)
            page.fill("#most", str(tokens))
            page.click("#send")
            page.wait_for_function("document.getElementById('facts').textContent.includes('hash')", timeout=1_200_000)
            said, facts = page.evaluate(
                "[document.getElementById('answer').textContent, document.getElementById('facts').textContent]"
            )
            found.append((said, facts.rsplit(" ", 1)[-1], time.perf_counter() - began))
            page.evaluate("document.getElementById('facts').textContent = ''")
        browser.close()
    server.shutdown()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="number of prompts; default 10")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer; default 64")
    args = parser.parse_args()
    opened = open_model(args.model, OpenOptions(ctx_size=256))
    prompts = PROMPTS[: args.prompts]
    with tempfile.TemporaryDirectory() as folder:
        export_web(opened, Path(folder))
        found = answers(Path(folder), prompts, args.tokens)
    wrong = 0
    for prompt, (said, digest, seconds) in zip(prompts, found, strict=True):
        text, hashed = expected(opened, prompt, args.tokens)
        same = said == text, digest == hashed
        wrong += not all(same)
        print(f"{prompt!r}: text {'equal' if same[0] else 'DIFFERENT'}, logits {'equal' if same[1] else 'DIFFERENT'}, "
              f"{seconds:.1f} s", flush=True)  # fmt: skip
    print(f"{len(prompts) - wrong} of {len(prompts)} prompts equal, {args.tokens} tokens each at most")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
