"""The exported page: its tokenizer against Python's, its frame of the chat template, and the page in a real browser."""

from __future__ import annotations

import base64
import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.cli import main
from assay.errors import AssayError
from assay.gguf import open_file
from assay.library.web_export import ASSETS, chat_frame, export_web, framed
from assay.runtime.draws import Draws
from assay.runtime.opening import Opened, OpenOptions
from assay.runtime.receipts import VERSION, row_digest
from assay.runtime.sampler import SamplerParams, sample
from assay.text import ChatTemplate, Tokenizer
from assay.text.exported_tokenizer import exported_tokenizer
from assay.text.pretokenize import PRETOKENIZERS, portable_split
from tests import tiny

NODE = shutil.which("node")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
VOCABULARIES = Path(os.environ.get("ASSAY_SHARED", Path(__file__).parents[3] / "shared")) / "data" / "vocab"
TEXTS = [
    "Hello world", "  two  spaces\n\nand lines\t x", "don't I'll 12345 3.14", "日本語 é ñ 🙂🙂 ¼", "", " ", "a" * 50,
    "<|endoftext|>a</s> b <s>", "def f(x):\n    return x**2 # ok", "\u00a0nb\u2003sp \u200b zero", "ПРИВЕТ мир ١٢٣",
]  # fmt: skip
ENCODE = """
import { readFileSync } from "node:fs";
const { Tokenizer, Detokenizer } = await import(process.argv[1]);
const { tokenizer, texts } = JSON.parse(readFileSync(0, "utf8"));
const made = new Tokenizer(tokenizer);
const said = (ids) => { const d = new Detokenizer(made); return ids.map((id) => d.push(id)).join("") + d.flush(); };
console.log(JSON.stringify(texts.map((text) => { const ids = made.encode(text); return [ids, said(ids)]; })));
"""


def in_javascript(tokenizer: Tokenizer, texts: list[str]) -> Any:
    if NODE is None:
        pytest.skip("there is no node")
    data = json.dumps({"tokenizer": exported_tokenizer(tokenizer), "texts": texts})
    command = [NODE, "--input-type=module", "-e", ENCODE, (ASSETS / "tokenizer.js").as_uri()]
    done = subprocess.run(command, input=data, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


def check_tokenizer(tokenizer: Tokenizer) -> None:
    for text, (ids, said) in zip(TEXTS, in_javascript(tokenizer, TEXTS), strict=True):
        assert ids == tokenizer.encode(text), text
        assert said == tokenizer.decode(ids, special=False), text


def test_a_scored_vocabulary(tmp_path: Path) -> None:
    check_tokenizer(Tokenizer.from_gguf(open_file(tiny.make(tmp_path / "m.gguf"))))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt-2", "llama-bpe", "llama-spm", "phi-3"])
def test_real_vocabularies(name: str) -> None:
    path = VOCABULARIES / f"ggml-vocab-{name}.gguf"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    check_tokenizer(Tokenizer.from_gguf(open_file(path)))


WORDS = """
import { readFileSync } from "node:fs";
const { Tokenizer } = await import(process.argv[1]);
const { rows, texts } = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(rows.map((splits) => {
  const made = new Tokenizer({ model: "gpt2", tokens: [], kinds: [], merges: [], splits });
  made.word = (word) => [word];
  return texts.map((text) => [...made.words(text)]);
})));
"""


def test_all_pre_tokenizers() -> None:
    """The words of every pre-tokenizer, in JavaScript and in Python."""
    if NODE is None:
        pytest.skip("there is no node")
    digits = ["1", "12", "123", "1234", "12345 678", "x1234567y", "12٣4567٨", "1 000 000", "½3"]
    beyond = ["𐐀𐑏 𐒰x", "\ufffe𐐀 \uffff", "🙂𞤀𞥄", " 。！ab~", "end  ", "end\u2003\n", "\n\n  \n"]
    texts = [*TEXTS, *digits, *beyond]
    names = [name for name, row in PRETOKENIZERS.items() if row.byte_encode]
    rows = [[portable_split(expression) for expression in PRETOKENIZERS[name].splits] for name in names]
    command = [NODE, "--input-type=module", "-e", WORDS, (ASSETS / "tokenizer.js").as_uri()]
    data = json.dumps({"rows": rows, "texts": texts})
    done = subprocess.run(command, input=data, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    assert len(names) > 60
    for name, found in zip(names, json.loads(done.stdout), strict=True):
        for text, words in zip(texts, found, strict=True):
            assert words == PRETOKENIZERS[name].split(text), (name, text)


def template(path: Path, source: str) -> ChatTemplate:
    file = open_file(tiny.make(path / "t.gguf", template=source))
    found = ChatTemplate.from_gguf(file, Tokenizer.from_gguf(file))
    assert found
    return found


def test_the_frame_of_a_message(tmp_path: Path) -> None:
    frame = chat_frame(template(tmp_path, tiny.TEMPLATE))
    after = "<|end|>\n<|turn|>assistant\n"
    assert frame == {
        "before": "<|turn|>user\n", "asked": after, "next": "<|end|>\n<|turn|>user\n", "after": after,
        "trimmed": [False, False],
    }  # fmt: skip
    trims = chat_frame(template(tmp_path, "[{{ messages[0]['content'] | trim }}]"))
    assert (trims["before"], trims["after"], trims["next"]) == ("[", "]", None) and trims["trimmed"][0]
    with pytest.raises(AssayError, match="the chat template changes a message"):
        chat_frame(template(tmp_path, "{{ messages[0]['content'] | upper }}"))


def test_conversations_of_recorded_templates() -> None:
    """Templates in which later turns can be framed give the text that the template itself gives."""
    recorded = VOCABULARIES.parent / "golden" / "chat_template_cases.json"
    if not recorded.exists():
        pytest.skip(f"{recorded} is not there")
    texts = ("What is 2+2?", " four ", "And\n3+3?", "<b>six</b>", "{{ why }}")
    roles = ("user", "assistant") * 3
    kinds = {"conversation": 0, "one message": 0, "refused": 0}
    for case in json.loads(recorded.read_text())["cases"]:
        made = ChatTemplate(
            case["template_str"], name="t", bos=case.get("bos_token", ""), eos=case.get("eos_token", "")
        )
        try:
            frame = chat_frame(made)
        except AssayError:
            kinds["refused"] += 1
            continue
        kinds["conversation" if frame["next"] is not None else "one message"] += 1
        for n in (1, 3, 5) if frame["next"] is not None else (1,):
            messages = [{"role": role, "content": text} for role, text in zip(roles, texts[:n], strict=False)]
            assert framed(frame, texts[:n]) == made.render(messages, add_generation_prompt=True)
    assert kinds["conversation"] >= 20, kinds


SAMPLE = """
import { readFileSync } from "node:fs";
const { draw, sample } = await import(process.argv[1]);
const { cases, numbers } = JSON.parse(readFileSync(0, "utf8"));
const row = (base64) => new Float32Array(new Uint8Array(Buffer.from(base64, "base64")).buffer);
const tokens = cases.map(({ logits, ids, params }) => sample(row(logits), ids, params));
console.log(JSON.stringify([tokens, numbers.map(([seed, place]) => draw(seed, place))]));
"""


def test_the_sampler_in_javascript() -> None:
    """The same tokens as `runtime.sampler` for drawn settings, and the same random numbers."""
    if NODE is None:
        pytest.skip("there is no node")
    rng = np.random.default_rng(5)
    cases, expected = [], []
    for i in range(400):
        size = int(rng.choice([5, 300, 3000]))
        logits = (rng.normal(size=size) * rng.choice([0.5, 3, 12])).astype(np.float32)
        if i % 5 == 0:
            logits = np.round(logits)  # equal logits: the order of ids decides
        ids = rng.integers(0, size, 40).tolist()
        given = {
            "temp": float(rng.choice([0, 0.3, 0.8, 1.5, 1e-300])), "top_k": int(rng.choice([0, 1, 4, 40, 5000])),
            "top_p": float(rng.choice([0.1, 0.9, 0.95, 1])), "min_p": float(rng.choice([0, 0.05, 0.4])),
            "repeat_penalty": float(rng.choice([1, 1.3])), "repeat_last_n": int(rng.choice([-1, 0, 10])),
            "presence_penalty": float(rng.choice([0, 0.7])), "seed": int(rng.integers(0, 2**53)),
        }  # fmt: skip
        params = given | {"seed": str(given["seed"])}
        cases.append({"logits": base64.b64encode(logits.tobytes()).decode(), "ids": ids, "params": params})
        draws = Draws(int(given["seed"]), len(ids))
        expected.append(sample(logits, ids, SamplerParams(**given), draws).id)  # type: ignore[arg-type]
    numbers = [(str(seed), place) for seed in (0, 7, 2**64 - 1) for place in (0, 1, 99)]
    command = [NODE, "--input-type=module", "-e", SAMPLE, (ASSETS / "sampler.js").as_uri()]
    data = json.dumps({"cases": cases, "numbers": numbers})
    done = subprocess.run(command, input=data, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    tokens, drawn = json.loads(done.stdout)
    assert tokens == expected
    assert drawn == [Draws(int(seed), place).random() for seed, place in numbers]


def test_an_exported_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan names every buffer that it uses, and the weights are as long as it says."""
    path = tiny.make(tmp_path / "m.gguf", type="Q8_0")
    assert main(["export-web", str(path), "-o", str(tmp_path / "site"), "-c", "64"]) == 0
    assert "a context of 64 tokens" in capsys.readouterr().out
    plan = json.loads((tmp_path / "site" / "plan.json").read_text())
    weights = {part["name"]: part["bytes"] for part in plan["weights"]}
    assert [(f["name"], f["bytes"]) for f in plan["files"]] == [
        (name, (tmp_path / "site" / name).stat().st_size) for name in ("packed.bin", "model.gguf")
    ]
    assert (tmp_path / "site" / "model.gguf").samefile(path)
    for program in plan["programs"]:
        there = {*weights, *plan["buffers"], *program["sizes"]}
        used = {name for d in program["dispatches"] for name in d["buffers"]}
        assert used <= there and program["logits"]["buffer"] in program["sizes"]
    assert {p.name for p in (tmp_path / "site").iterdir()} == {p.name for p in ASSETS.iterdir()} | {
        "plan.json", "packed.bin", "model.gguf",
    }  # fmt: skip


COMPARE = """
import { readFileSync } from "node:fs";
const { rowHashes, verdict } = await import(process.argv[1]);
const cases = JSON.parse(readFileSync(0, "utf8"));
const row = await rowHashes(new Float32Array([9, 0, 1, -2.5, 3]).subarray(1));
const long = await rowHashes(Float32Array.from({ length: 101 }, (_, i) => i * i - 7.5));
console.log(JSON.stringify([row, long, ...cases.map(([mine, said]) => verdict(mine, said))]));
"""


def test_the_comparison_with_a_server() -> None:
    """The hash of a row is a receipt's, and the first token that differs is named."""
    pytest.importorskip("cryptography", reason="receipts need the package cryptography")
    if NODE is None:
        pytest.skip("there is no node")
    mine = {"text": "ab", "tokens": [5, 6, 2], "rows": [{"3": "w", "4": x} for x in "xyz"]}
    header = {"version": 4, "arithmetic": ["native", "fast", "f16", 1]}
    receipt = {"tokens": [5, 6, 2], "rows": ["x", "y", "z"], "header": header}
    said: dict[str, Any] = {"choices": [{"text": "ab"}], "receipts": [receipt]}
    cases = [
        (mine, said),
        (mine, {"choices": [{"text": "ab"}]}),
        (mine, {"choices": [{"text": "ac"}], "receipts": [receipt | {"tokens": [5, 7, 2], "rows": ["x", "y", "w"]}]}),
        (mine, {**said, "receipts": [receipt | {"rows": ["x", "y"], "tokens": [5, 6]}]}),
        (mine | {"text": "a"}, said),
        (mine, {**said, "receipts": [receipt | {"header": header | {"version": 99}}]}),
    ]
    command = [NODE, "--input-type=module", "-e", COMPARE, (ASSETS / "compare.js").as_uri()]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    row, long, *found = json.loads(done.stdout)
    assert row == {
        "3": "bc412961432d3f0051e7fc6fd1b9da8e",
        "4": "3ed7897978efc2c316bd75d7114a7e04",
    }  # reference/receipts.md
    assert long[str(VERSION)] == row_digest(np.arange(101, dtype=np.float32) ** 2 - np.float32(7.5)).hex()
    assert [case["equal"] for case in found] == [True, False, False, False, False, False]
    for case, words in zip(
        found,
        (
            "all 3 tokens",
            "--receipts KEY",
            "token 2 of 3 on: the token",
            "token 3 of 3 on: the logits",
            "the text is different",
            "version 99",
        ),
        strict=True,
    ):
        assert words in case["words"]


def test_models_that_no_page_can_run(tmp_path: Path) -> None:
    opened = Opened(open_file(tiny.make(tmp_path / "m.gguf")), OpenOptions())
    opened.__dict__["template"] = template(tmp_path, "{{ messages[0]['content'] | upper }}")
    with pytest.raises(AssayError, match="export with --raw"):
        export_web(opened, tmp_path / "site")
    assert not (tmp_path / "site").exists()


@pytest.mark.slow
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    """A tiny model in headless Chromium (SwiftShader): the text of `assay run`, and logits equal to a server's."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")
    pytest.importorskip("cryptography", reason="receipts need the package cryptography")
    if not CHROMIUM:
        pytest.skip("there is no chromium")
    path, site = tiny.make(tmp_path / "m.gguf", type="Q8_0"), tmp_path / "site"
    opened = Opened(open_file(path), OpenOptions(ctx_size=256))
    export_web(opened, site)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    origin = f"http://127.0.0.1:{server.server_port}"
    words = [
        "serve",
        str(path),
        "--port",
        "0",
        "--receipts",
        str(tmp_path / "key"),
        "--cors",
        origin,
        "-t",
        "1",
        "--json",
    ]
    assay = subprocess.Popen([sys.executable, "-m", "assay", *words], stdout=subprocess.PIPE, text=True)
    assert assay.stdout
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--enable-unsafe-webgpu"])
        page = browser.new_page()
        page.goto(origin)
        page.wait_for_function("!document.getElementById('send').disabled", timeout=280_000)
        page.fill("#prompt", "hello")
        page.fill("#most", "4")
        page.click("#send")
        page.wait_for_function("document.getElementById('facts').textContent.includes('hash')", timeout=60_000)
        said = page.evaluate("document.getElementById('answer').textContent")
        for summary in page.query_selector_all("summary"):
            summary.click()
        page.fill("#server", json.loads(assay.stdout.readline())["url"])
        verdicts = []
        for temperature in ("0", "1.5"):  # the second and the third turn of a conversation
            page.fill("#temp", temperature)
            page.fill("#prompt", "and then?")
            page.click("#compare")
            page.wait_for_function("document.getElementById('verdict').textContent", timeout=60_000)
            verdicts.append(page.evaluate("document.getElementById('verdict').textContent"))
            assert "were in the cache" in page.evaluate("document.getElementById('facts').textContent")
        turns = page.evaluate("[...document.getElementById('turns').children].map((part) => part.textContent)")
        if picture := os.environ.get("ASSAY_SCREENSHOT"):
            page.screenshot(path=picture)
        browser.close()
    server.shutdown()
    assay.terminate()
    assert assay.wait(60) == 0
    command = [sys.executable, "-m", "assay", "run", str(path), "hello", "-n", "4", "--temp", "0", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said == json.loads(done.stdout)["text"]
    assert verdicts == ["Equal: the text, and the logits of all 4 tokens, to the bit."] * 2
    assert turns[:3] == ["hello", said, "and then?"] and len(turns) == 5


@pytest.mark.slow
def test_a_file_of_the_user(tmp_path: Path) -> None:
    """A folder without the model asks for it, refuses another file, and answers from the right one."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")
    if not CHROMIUM:
        pytest.skip("there is no chromium")
    path, site = tiny.make(tmp_path / "mine.gguf", type="Q4_0"), tmp_path / "site"
    short, other = tmp_path / "short.gguf", tmp_path / "other.gguf"
    short.write_bytes(path.read_bytes()[:-32])
    other.write_bytes(path.read_bytes().replace(b"blk.0.attn_q.weight", b"blk.9.attn_q.weight"))
    export_web(Opened(open_file(path), OpenOptions(ctx_size=64)), site, with_model=False)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--enable-unsafe-webgpu"])
        page = browser.new_page()

        def says(words: str, seconds: int = 60) -> None:
            shown = "words => document.getElementById('facts').textContent.includes(words)"
            page.wait_for_function(shown, arg=words, timeout=1000 * seconds)

        page.goto(f"http://127.0.0.1:{server.server_port}")
        says("this page's host has no model.gguf; choose the file on this machine.")
        assert page.text_content("#wanted") == "mine.gguf (0 MB)"
        if picture := os.environ.get("ASSAY_SCREENSHOT"):
            page.screenshot(path=picture)
        page.set_viewport_size({"width": 320, "height": 640})
        assert page.evaluate("document.documentElement.scrollWidth") == 320
        page.set_input_files("#file", short)
        says(f"short.gguf has {short.stat().st_size} bytes; this page needs mine.gguf")
        page.set_input_files("#file", other)
        says("other.gguf is another model than this page's; choose mine.gguf")
        page.set_input_files("#file", path)
        page.wait_for_function("!document.getElementById('send').disabled", timeout=280_000)
        page.fill("#most", "2")
        page.click("#send")
        says("hash of all logits")
        assert page.text_content("#facts").endswith("; cut at 2 tokens")
        page.click("#fresh")
        assert not page.text_content("#turns") and not page.text_content("#answer")
        page.fill("#prompt", "a " * 15)
        page.fill("#most", "1000")
        page.click("#send")
        says("cut: the context of 64 tokens is full", 120)
        page.fill("#prompt", "and then?")
        page.click("#send")
        says("this page holds 64; shorten it, or start a new one.")
        assert page.input_value("#prompt") == "and then?"
        page.click("#fresh")
        page.click("#send")
        page.wait_for_function("document.getElementById('answer').textContent", timeout=60_000)
        page.click("#cancel")
        says("; stopped")
        browser.close()
    server.shutdown()
