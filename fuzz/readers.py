"""The table of fuzzed readers: for each a function that makes inputs and a function that reads them.

`Reader.make` gives an input out of a random generator; `Reader.read` takes it and returns, or raises one of `refusals`.
"""

from __future__ import annotations

import io
import json
import os
import random
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from tests import tiny

from assay.errors import AssayError
from assay.gguf import open_file
from assay.gguf.writer import Tensor, write
from assay.models import load
from assay.models.file_report import describe
from assay.runtime import hf, ollama_store
from assay.system.files import write as write_file
from assay.text import ChatTemplate, Tokenizer
from assay.verify.dumps.load import load_dump, read_dump
from assay.verify.dumps.printed.log_reader import read_log
from assay.verify.dumps.printed.patterns import Pattern
from assay.verify.endpoint.client import Client
from assay.verify.endpoint.dialects import DIALECTS
from assay.verify.endpoint.wire import parsed
from fuzz import mutate
from fuzz.frame_readers import make_frame, read_frame
from fuzz.picture_readers import make_picture, make_tower, read_picture, read_tower

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Reader:
    name: str
    make: Callable[[random.Random], Any]
    read: Callable[[Any], None]
    refusals: tuple[type[BaseException], ...] = (AssayError,)


class Seeds:
    """Material for inputs: a tiny model, its trace in every format, lines that people print."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths = [
            tiny.make(folder / "a.gguf", n_layer=1, n_embd=32, n_ff=32),
            tiny.make(folder / "b.gguf", n_layer=1, n_embd=32, n_ff=32, type="Q8_0", tied=False, n_expert=2),
            tiny.make(folder / "c.gguf", n_layer=1, n_embd=32, n_ff=32, rope_scaling={"type": "yarn", "factor": 2.0}),
        ]
        self.files = [path.read_bytes() for path in self.paths]
        self.model = load(open_file(self.paths[0]))
        self.tokenizer = Tokenizer.from_gguf(self.model.file)
        rows = np.linspace(-1, 1, 96, dtype=np.float32).reshape(3, 32)
        arrays = {"tokens": np.array([1, 5, 6]), "embd": rows, "attn_norm-0": rows, "odd": rows[:1], "l_out-0": rows}
        plain, packed = io.BytesIO(), io.BytesIO()
        np.savez(plain, **arrays)
        np.savez_compressed(packed, **arrays)
        self.archives = [plain.getvalue(), packed.getvalue()]
        single = io.BytesIO()
        np.save(single, rows)
        self.array = single.getvalue()
        importers = ROOT / "tests" / "data" / "importers"
        names = (
            "types.pt",
            "numpy5.pkl",
            "ort/input_ids.tensorproto",
            "debug_tree_FULL_TENSORS.json",
            "numeric_gap.csv",
        )
        self.foreign = [(Path(name).suffix, (importers / name).read_bytes()) for name in names]
        header = {"__metadata__": {"a": "b"}}
        at = 0
        for name, array in arrays.items():
            kind = "F32" if array.dtype == np.float32 else "I64"
            header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}  # type: ignore[dict-item]
            at += array.nbytes
        self.header, self.blob = header, b"".join(np.ascontiguousarray(a).tobytes() for a in arrays.values())
        self.lines: list[Any] = [
            {"assay_dump": 1, "engine": "x", "tokens": [1, 5, 6], "positions": [0, 1, 2], "phase": "prefill"},
            {"name": "embd", "shape": [3, 32], "first": [0.1, -0.2, 0.5], "rms": 0.5, "mean": 0.0, "min": -1, "max": 1},
            {"name": "attn_norm-0", "row": -1, "last": [1.5, 2.5], "sum": 3.0, "at": [[0, 1.0], [5, 2.0]]},
            {"name": "result_output", "top": [[5, 2.5], [6, 1.5]]},
            {"name": "l_out-0", "values": rows.tolist(), "shape": [3, 32]},
            {"name": "ffn_out-0", "file": "x.bin", "dtype": "f32", "shape": [3, 32]},
        ]
        logs = ROOT / "tests" / "data" / "logs"
        self.logs = [p.read_text("utf-8", "replace")[:4000] for p in sorted(logs.glob("*")) if p.is_file()] or [LOG]

    def put(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path


MANIFESTS = (
    '{"tokens": [1, 5, 6], "tensors": [{"name": "embd", "dtype": "f32le", "shape": [3, 32], "offset": 24}]}',
    "tokens: 1 5 6\nembd f32 [3, 32] 24\nq.0 tok=0 offset=408 count=32 f32\nname: l_out\nshape: 3x32\n",
    'tokens = [1, 5, 6]\n[embd]\nshape = [3, 32]\noffset = 24\ndtype = "float32"\n',
)
LOG = """[INFO] 12:00:00 model.rs:42: layer 0
Tokens: [1, 5, 6]
attn_norm-0: [0.1, -0.2, 0.5, ..., 1.0] rms=0.5 mean=0.01
## Layer 0
| layer | rms | first |
|---|---|---|
| 0 | 1.25 | 0.5 |
ggml_debug:  l_out-0 = (f32)  ADD(a{32, 3, 1, 1}, b{32, 3, 1, 1}) = {32, 3, 1, 1}
    [ 0.1, 0.2, 0.3, ..., 0.4, 0.5, 0.6 ],
    sum = 1.5
logits: top 5 [(5, "a", 2.5), (6, "b", 1.5)]
tensor([[0.1, 0.2],
        [0.3, 0.4]])
"""
TEMPLATES = (
    tiny.TEMPLATE,
    "{% for m in messages %}{{ m.content | trim | upper }}{% endfor %}{{ x | default('a') * 3 }}",
    "{% set ns = namespace(a=0) %}{% for i in range(5) %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(messages[0]['role']) }}{% if tools %}{{ tools | tojson }}{% endif %}",
    "{{ messages | map(attribute='role') | join(',') }}{{ raise_exception('no') if false }}{{ strftime_now('%Y') }}",
)
GRAMMARS = (
    ("lark", "start: /[a-z]+/ NUMBER\nNUMBER: /[0-9]{1,9}/"),
    ("gbnf", 'root ::= "a" [0-9]* (b | "c")+\nb ::= "x" | b "y"'),
    ("lark", 'start: %json {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}}'),
    ("gbnf", 'root ::= s\ns ::= s s s s | [a-z ] | ""'),
    ("gbnf", 'root ::= (a | b)* \na ::= "x" a? | "x" b\nb ::= [a-z]{1,9} | a "y"'),
    ("lark", 'start: %json {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,3}$"}, "maxItems": 4}'),
)
REPLY: dict[str, Any] = {
    "choices": [
        {
            "text": " a", "finish_reason": "length", "message": {"content": " a"},
            "logprobs": {
                "tokens": ["▁a", "b"], "ids": [5, 6], "token_logprobs": [-0.5, -1.5],
                "top_logprobs": [{"a": -0.5}, None],
                "content": [{"token": "a", "id": 5, "logprob": -0.1, "top_logprobs": [{"token": "b", "logprob": -3}]}],
            },
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}  # fmt: skip
# An answer of each route that the client knows, in the order of DIALECTS.
REPLIES = (
    REPLY,
    {
        "generated_text": " a",
        "details": {
            "finish_reason": "length", "generated_tokens": 2,
            "tokens": [{"id": 5, "text": "a", "logprob": -0.5}, {"id": 6, "text": "b", "logprob": -1.5}],
            "top_tokens": [[{"id": 5, "text": "a", "logprob": -0.5}], []],
        },
    },
    REPLY,
    {
        "status": "incomplete", "usage": {"input_tokens": 3, "output_tokens": 1},
        "output": [{"type": "message", "content": [
            {"type": "output_text", "text": " a", "logprobs": REPLY["choices"][0]["logprobs"]["content"]},
        ]}],
    },
    {
        "content": [{"type": "text", "text": " a"}], "stop_reason": "max_tokens",
        "usage": {"input_tokens": 3, "output_tokens": 1},
    },
)  # fmt: skip
REQUESTS = (
    ("ChatRequest", {
        "model": "m", "max_tokens": 5, "temperature": 0.5, "stop": ["x"], "stream": True, "logprobs": True, "seed": 3,
        "messages": [{"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "top_logprobs": 2, "tool_choice": "auto",
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "integer"}}},
        "logit_bias": {"5": 1.0}, "n": 2, "stream_options": {"include_usage": True},
    }),
    ("CompletionRequest", {"prompt": ["a", "b"], "max_tokens": 3, "logprobs": 2, "echo": True, "top_k": 5}),
    ("EmbeddingRequest", {"input": [[1, 2], [3]], "encoding_format": "base64", "dimensions": 32, "pooling": "last"}),
    ("TokenizeRequest", {"content": "abc", "add_special": True, "with_pieces": True}),
    ("DetokenizeRequest", {"tokens": [1, 2, 3]}),
    ("TraceRequest", {"tokens": [1, 2], "nodes": ["l_out-*"], "lens": True, "first": 3, "top": 2}),
)  # fmt: skip


def readers(folder: Path) -> dict[str, Reader]:
    """All readers, with seeds made in `folder`."""
    seeds = Seeds(folder)
    made = [
        Reader("gguf", lambda rng: _gguf(rng, seeds), lambda raw: _read_gguf(seeds, raw)),
        Reader("split", lambda rng: _split(rng, seeds), lambda raws: _read_split(seeds, raws)),
        Reader("dump", lambda rng: _dump(rng, seeds), lambda item: _read_dump(seeds, item)),
        Reader("log", lambda rng: _log(rng, seeds), _read_log),
        Reader("template", _template, _read_template),
        Reader("text", lambda rng: _text(rng), seeds.tokenizer.encode, ()),
        Reader("reply", _reply, _reply_reader(seeds)),
        Reader("listing", _listing, lambda item: _read_listing(seeds, item)),
        Reader("frame", make_frame, read_frame),
        Reader("mmproj", make_tower, lambda raw: read_tower(seeds.folder / "mmproj.gguf", raw)),
    ]
    if find_spec("PIL"):
        made.append(Reader("picture", make_picture, read_picture))
    try:
        from assay.runtime.grammar import Grammars
        from assay.serve.api_errors import ApiError
        from assay.serve.http.body import parse
    except ImportError:
        return {reader.name: reader for reader in made}
    grammars = Grammars(seeds.tokenizer, seeds.tokenizer.n_vocab)
    from assay.serve.api import schemas
    from assay.serve.limits import ServerLimits

    def read_request(item: tuple[str, bytes]) -> None:
        parse(item[1], getattr(schemas, item[0]), ServerLimits())

    def read_grammar(item: tuple[str, str, int]) -> None:
        """Compile a grammar and follow it for some tokens."""
        make = grammars.gbnf(item[1]) if item[0] == "gbnf" else grammars.lark(item[1], "grammar")
        matcher, rng = make(), random.Random(item[2])
        try:
            for _ in range(item[2] % 12):
                allowed = np.flatnonzero(np.isfinite(matcher.mask(np.zeros(seeds.tokenizer.n_vocab, np.float32))))
                if not len(allowed):
                    return
                matcher.accept(int(rng.choice(allowed)))
        finally:
            matcher.close()

    made += [
        Reader("request", _request, read_request, (ApiError,)),
        Reader("body", _body, read_request, (ApiError,)),
        Reader("grammar", _grammar, read_grammar),
    ]
    return {reader.name: reader for reader in made}


# -- models ------------------------------------------------------------------------------------------------------


def _gguf(rng: random.Random, seeds: Seeds) -> bytes:
    """A whole file with other values or shapes, or bytes changed in its header or anywhere."""
    source = rng.randrange(len(seeds.files))
    if rng.random() < 0.3:
        return _rewritten(rng, seeds, seeds.paths[source])
    raw = seeds.files[source]
    if rng.random() < 0.7:
        head = min(len(raw), 12_000)
        return mutate.data(rng, raw[:head]) + raw[head:]
    return mutate.data(rng, raw)


def _rewritten(rng: random.Random, seeds: Seeds, path: Path) -> bytes:
    with open_file(path) as file:
        keys: dict[str, Any] = {key: file.metadata.typed(key) for key in file.metadata}
        for key in rng.sample(sorted(keys), rng.choice((1, 1, 2, 4))):
            change = rng.choice((mutate.number(rng) % 2**32, rng.choice(mutate.WORDS[:12]), rng.choice(mutate.FLOATS),
                                 np.arange(rng.randrange(5), dtype=np.int32), ["a", "b"], True, None))  # fmt: skip
            if change is None:
                del keys[key]
            else:
                keys[key] = change
        tensors = []
        for name, info in file.tensors.items():
            if rng.random() < 0.03:
                continue
            shape, data = info.shape, file.raw(name).copy()
            if rng.random() < 0.05:
                shape = rng.choice([(*shape, 1), (1, *shape), shape[::-1], shape[:1]])[-4:]
            tensors.append(Tensor(name, shape, info.type, data))
        out = seeds.folder / "rewritten.gguf"
        try:
            write(out, keys, tensors)
        except (AssayError, struct.error, OverflowError, UnicodeEncodeError):
            return seeds.files[0]
        return out.read_bytes()


def _read_gguf(seeds: Seeds, raw: bytes) -> None:
    path = seeds.put("fuzzed.gguf", raw)
    with open_file(path) as file:
        describe(file)
        tokenizer = Tokenizer.from_gguf(file)
        tokenizer.decode(tokenizer.encode("hello <s> é"))
        ChatTemplate.from_gguf(file, tokenizer)
        model = load(file)
        if model.hparams.n_vocab > 8 and sum(t.nbytes for t in file.tensors.values()) < 1 << 20:
            from assay import engines
            from assay.engines.contract import Chunk

            with np.errstate(all="ignore"):
                engine = engines.create("cpu", model, n_pages=1, threads=1)
                engine.forward([Chunk(np.array([1, 5]), 0, np.arange(1, dtype=np.int32), "last")])
                engine.close()


def _split(rng: random.Random, seeds: Seeds) -> list[bytes]:
    """Two parts that may disagree."""
    parts = []
    for no in range(2):
        keys = {"general.architecture": "llama", "split.no": no, "split.count": 2, "split.tensors.count": 2}
        keys = {k: (mutate.number(rng) % 2**32 if rng.random() < 0.15 else v) for k, v in keys.items()}
        name = f"t{no if rng.random() < 0.9 else 0}"
        out = seeds.folder / "part.gguf"
        try:
            write(out, keys, [Tensor(name, (4, 8), seeds.model.file.tensors["output_norm.weight"].type,
                                     np.zeros((4, 8), np.float32))])  # fmt: skip
        except AssayError:
            continue
        raw = out.read_bytes()
        parts.append(mutate.data(rng, raw) if rng.random() < 0.5 else raw)
    return parts


def _read_split(seeds: Seeds, raws: list[bytes]) -> None:
    for path in seeds.folder.glob("m-0000*"):
        path.unlink()
    for no, raw in enumerate(raws):
        seeds.put(f"m-{no + 1:05}-of-00002.gguf", raw)
    with open_file(seeds.folder / "m-00001-of-00002.gguf") as file:
        for name in file.tensors:
            file.decode(name)


# -- dumps -------------------------------------------------------------------------------------------------------


def _dump(rng: random.Random, seeds: Seeds) -> tuple[str, bytes]:
    kind = rng.choice(("jsonl", "jsonl", "npz", "safetensors", "npy", "foreign", "raw", "table"))
    if kind == "raw":
        text = rng.choice(MANIFESTS)
        made = json.dumps(mutate.value(rng, json.loads(text), 0.1)) if text[:1] == "{" else mutate.text(rng, text)
        return f"raw.{rng.choice(('json', 'txt', 'toml'))}", made.encode("utf-8", "replace")
    if kind == "table":
        rows = [",".join((str(i), str(i + 5), *(f"{rng.random():.4f}" for _ in range(20)))) for i in range(3)]
        head = "pos,token," + ",".join(f"logit_{i}" for i in range(20))
        return "x.csv", mutate.text(rng, "\n".join((rng.choice(("", head)), *rows))).encode("utf-8", "replace")
    if kind == "foreign":
        suffix, raw = rng.choice(seeds.foreign)
        return f"x{suffix}", mutate.data(rng, raw)
    if kind == "jsonl":
        lines = [mutate.value(rng, line, 0.1) for line in rng.sample(seeds.lines[1:], rng.randrange(1, 6))]
        head = mutate.value(rng, seeds.lines[0], 0.03)
        raw = "\n".join(json.dumps(line) for line in (head, *lines)).encode()
        return "x.jsonl", mutate.data(rng, raw) if rng.random() < 0.3 else raw
    if kind == "npz":
        return "x.npz", mutate.data(rng, rng.choice(seeds.archives))
    if kind == "npy":
        return "folder", mutate.data(rng, seeds.array)
    header = json.dumps(mutate.value(rng, seeds.header, 0.1)).encode()
    raw = struct.pack("<Q", len(header)) + header + seeds.blob
    return "x.safetensors", mutate.data(rng, raw) if rng.random() < 0.5 else raw


def _read_dump(seeds: Seeds, item: tuple[str, bytes]) -> None:
    name, raw = item
    if name.startswith("raw."):
        folder = seeds.folder / "raw"
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        (folder / "raw.bin").write_bytes(seeds.blob)
        path = seeds.put(f"raw/{name}", raw)
    elif name.endswith(".tensorproto"):
        (seeds.folder / "protos").mkdir(exist_ok=True)
        path = seeds.put("protos/embd.tensorproto", raw).parent
    elif name == "folder":
        (seeds.folder / "npy").mkdir(exist_ok=True)
        path = seeds.put("npy/embd.npy", raw).parent
        np.save(path / "tokens.npy", np.array([1, 5, 6]))
    else:
        path = seeds.put(name, raw)
    dump = read_dump(path)
    for obs in dump.observations:
        if obs.kind == "values" and np.prod(obs.shape or (1,)) < 1 << 20:
            obs.array()
    with np.errstate(all="ignore"):
        load_dump(path, seeds.model, tokens=() if dump.tokens else (1, 5, 6))


def _log(rng: random.Random, seeds: Seeds) -> tuple[str, str]:
    source = rng.choice((*seeds.logs, LOG, LOG))
    lines = source.splitlines()
    at = rng.randrange(max(1, len(lines) - 12))
    text = "\n".join(mutate.text(rng, line) if rng.random() < 0.4 else line for line in lines[at : at + 12])
    pattern = rng.choice(("", "", "{name}: rms={rms}", "* {layer} {first}", mutate.text(rng, "{name} = {first} {rms}")))
    return text, pattern


def _read_log(item: tuple[str, str]) -> None:
    text, pattern = item
    read_log(Path("log"), [Pattern(pattern).text] if pattern else [], text)


# -- texts, templates, grammars, requests, replies, listings -----------------------------------------------------


def _template(rng: random.Random) -> str:
    return mutate.text(rng, rng.choice(TEMPLATES))


def _read_template(source: str) -> None:
    template = ChatTemplate(source, name="fuzzed", bos="<s>", eos="</s>")
    template.render([{"role": "user", "content": "a"}], timeout=5.0)


def _text(rng: random.Random) -> str:
    parts = [rng.choice((*mutate.WORDS, "<s>", "the ", "  ", "\n\n", "123")) for _ in range(rng.randrange(40))]
    return "".join(parts).encode("utf-8", "replace").decode()


def _grammar(rng: random.Random) -> tuple[str, str, int]:
    """A grammar, and a number that decides which tokens are drawn from it."""
    kind, text = rng.choice(GRAMMARS)
    return kind, mutate.text(rng, text), rng.randrange(1 << 20)


def _body(rng: random.Random) -> tuple[str, bytes]:
    """A body whose structure is the attack: very many values, very deep ones, or strings that hide brackets."""
    name, body = rng.choice(REQUESTS)
    key = rng.choice((*body, "x"))
    n = rng.choice((10, 100, 1000, 1000, 5000, 70_000 if rng.random() < 0.1 else 20))
    item = rng.choice(
        ('"a"', "1", "[]", "{}", "null", '"\\\\"', '"\\\\""', '"[["', '"\\u005b"', "-0.0", "1e999", '{"a":[]}')
    )
    match rng.randrange(4):
        case 0:
            value = "[" + ",".join([item] * n) + "]"
        case 1:
            deep = min(n, 100_000)
            value = "[" * deep + item + "]" * (deep - rng.choice((0, 0, 1)))
        case 2:
            value = "{" + ",".join(f'"{i}":{item}' for i in range(n)) + "}"
        case _:
            value = '"' + rng.choice(("\\\\", '\\"', "\\ud800", "a", "\\n", "é")) * n + '"'
    other = json.dumps({k: v for k, v in body.items() if k != key})[1:-1]
    return name, f'{{"{key}":{value}{"," if other else ""}{other}}}'.encode()


def _request(rng: random.Random) -> tuple[str, bytes]:
    name, body = rng.choice(REQUESTS)
    raw = json.dumps(mutate.value(rng, body)).encode()
    return name, mutate.data(rng, raw) if rng.random() < 0.3 else raw


def _reply(rng: random.Random) -> tuple[int, Any]:
    which = rng.randrange(len(REPLIES))
    return which, mutate.value(rng, REPLIES[which], rng.choice((0.02, 0.2)))


def _reply_reader(seeds: Seeds) -> Callable[[tuple[int, Any]], None]:
    client = Client("http://localhost:1", seeds.tokenizer)

    def read(item: tuple[int, Any]) -> None:
        which, value = item
        body = json.dumps(value).encode()
        streamed = (b"data: " + body + b"\n\ndata: [DONE]\n\n",) if REPLIES[which] is REPLY else ()
        for raw in (body, *streamed):  # an answer, and in OpenAI's form a stream of one event
            found = parsed("here", raw)
            checked = client._checked("here", DIALECTS[which].answer(found) if isinstance(found, dict) else found)
            for generated in (None, 1):
                client._reply(checked, generated)

    return read


def _listing(rng: random.Random) -> tuple[list[str], str, bytes]:
    names = ["m-Q4_K_M.gguf", "m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf", "mmproj.gguf", "README.md"]
    names = [mutate.text(rng, name) if rng.random() < 0.3 else name for name in names]
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + "0" * 64, "size": 5}
    manifest = json.dumps(mutate.value(rng, {"layers": [layer, {"mediaType": "x"}]}, 0.15)).encode()
    return names, rng.choice(("", "Q4_K_M", "q8_0", *mutate.WORDS[:20])), manifest


def _read_listing(seeds: Seeds, item: tuple[list[str], str, bytes]) -> None:
    names, wanted, manifest = item
    refused = None
    try:
        hf.choose("hf:a/b", names, wanted)
    except AssayError as error:
        refused = error
    os.environ["OLLAMA_MODELS"] = str(seeds.folder / "ollama")
    path = seeds.folder / "ollama" / "manifests" / "registry.ollama.ai" / "library" / "m" / "latest"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, manifest)
    blob = seeds.folder / "ollama" / "blobs" / ("sha256-" + "0" * 64)
    blob.parent.mkdir(exist_ok=True)
    blob.write_bytes(b"12345")
    ollama_store.find("ollama:m")
    if refused is not None:
        raise refused


def temporary() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder, in memory if the machine has one."""
    return tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
