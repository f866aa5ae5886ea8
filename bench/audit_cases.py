"""The servers of an audit: the cases of docs/lab/audits.md, and the files that they need."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from tests.synthetic import make_kquant

from assay.gguf import GGUFFile, open_file
from assay.gguf.codecs import decode, encode
from assay.gguf.mixes import mix_by_name
from assay.gguf.requantize import quantize
from assay.gguf.writer import Tensor, write
from assay.runtime import hub
from assay.text.builtin import TEMPLATES
from assay.verify.endpoint.audit_findings import AuditResult

Q8, Q4 = ({f"cache_type_{side}": kind for side in "kv"} for kind in ("q8_0", "q4_0"))
# name -> claimed, served, options of the server, changes of a proxy, words that the right answer has
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any], str]] = {
    "as claimed": ("claim", "claim", {}, {}, ""),
    "Q4_0, and claimed so": ("Q4_0", "Q4_0", {}, {}, ""),
    "prefix cache off": ("claim", "claim", {"cache_prompt": False}, {}, ""),
    "cache in q8_0": ("claim", "claim", Q8, {}, ""),
    "four slots": ("claim", "claim", {"n_parallel": 4}, {}, ""),
    "four slots, other clients": ("claim", "claim", {"n_parallel": 4}, {"others": 2}, ""),
    "flash attention": ("claim", "claim", {"flash_attn_type": 1}, {}, ""),
    "flash attention off": ("claim", "claim", {"flash_attn_type": 0}, {}, ""),
    "weights not repacked": ("claim", "claim", {"no_extra_bufts": True}, {}, ""),
    "batches of 8": ("claim", "claim", {"n_batch": 8, "n_ubatch": 8}, {}, ""),
    "two digits": ("claim", "claim", {}, {"digits": 2}, ""),
    "RoPE base 1e4": ("claim", "claim", {"rope_freq_base": 1e4}, {}, "base of 10000"),
    "RoPE scale 0.5": ("claim", "claim", {"rope_freq_scale": 0.5}, {}, "multiplied by 0.5"),
    "weights in Q4_0": ("claim", "Q4_0", {}, {}, "Q4_0"),
    "weights in Q4_K_M": ("claim", "Q4_K_M", {}, {}, "Q4_K_M"),
    "weights in Q2_K": ("claim", "Q2_K", {}, {}, "Q2_K"),
    "BOS before every text": ("claim", "claim", {}, {"before": "BOS"}, "BOS"),
    "BOS missing": ("claim", "no BOS", {}, {}, "no BOS"),
    "template of llama2": ("claim", "claim", {"chat_template": TEMPLATES["llama2"]}, {}, "llama2"),
    "cache in q4_0": ("claim", "claim", Q4, {}, "q4_0"),
    "another model": ("claim", "other", {}, {}, "another model"),
    "hidden system message": ("claim", "claim", {}, {"system": "Speak like a pirate."}, "chat prompt"),
    "usual system message": ("claim", "claim", {}, {"system": "Be concise."}, "Be concise"),
    "temperature 0.8": ("claim", "claim", {}, {"temperature": 0.8}, "temperature 0 was asked for"),
    "top-k 1": ("claim", "claim", {}, {"top_k": 1}, "top-k 1"),
    "one seed": ("claim", "claim", {}, {"seed": 5}, "seeds"),
}
# Neighbours of these cases, in the same form: `--only NAME` audits one of them.
NEIGHBOURS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any], str]] = {
    "a context of 512": ("claim", "claim", {"n_ctx": 512, "n_batch": 32, "n_ubatch": 32}, {}, ""),
    "RoPE base 5e4": ("claim", "claim", {"rope_freq_base": 5e4}, {}, "base of"),
    "RoPE base 31415": ("claim", "claim", {"rope_freq_base": 31415.0}, {}, "base of"),
    "RoPE scale 2": ("claim", "claim", {"rope_freq_scale": 2.0}, {}, "multiplied by 2"),
    "RoPE scale 0.7": ("claim", "claim", {"rope_freq_scale": 0.7}, {}, "multiplied by about 0.7"),
    "repetition penalty 1.3": ("claim", "claim", {}, {"repeat_penalty": 1.3}, "penalty"),
    "repetition penalty 1.1": ("claim", "claim", {}, {"repeat_penalty": 1.1}, "penalty"),
    "frequency penalty 1": ("claim", "claim", {}, {"frequency_penalty": 1.0}, "penalty"),
    "min-p 0.2": ("claim", "claim", {}, {"min_p": 0.2}, "min-p"),
    "top-p 0.8": ("claim", "claim", {}, {"top_p": 0.8}, "top-p"),
    "temperature 0.3": ("claim", "claim", {}, {"temperature": 0.3}, "temperature 0 was asked for"),
    "keys in q4_0": ("claim", "claim", {"cache_type_k": "q4_0"}, {}, "q4_0"),
    "weights in Q3_K_M": ("claim", "Q3_K_M", {}, {}, "Q3_K_M"),
    "weights in IQ4_XS": ("claim", "IQ4_XS", {}, {}, "IQ4_XS"),
    "a fine-tune": ("claim", "tuned", {}, {}, "fine-tune"),
    "two BOS before every text": ("claim", "claim", {}, {"before": "BOS BOS"}, "BOS"),
    "prompts cut to 32 tokens": ("claim", "claim", {}, {"cut": 32}, "cut"),
    "a long system message": ("claim", "claim", {}, {"system": "Mind the rules of the house. " * 12}, "chat prompt"),
    "another thinking switch": ("claim", "claim", {}, {"system": "/no_think"}, "chat prompt"),
}


def files(name: str, folder: Path, other: str = "") -> dict[str, Path]:
    """The files of a model, made when they are first needed."""
    claim = make_kquant(folder / "claim.gguf") if name == "synthetic" else hub.resolve(name)
    return {"claim": claim, "other": Path(other) if other else folder / "other.gguf"}


def file_of(kind: str, made: dict[str, Path], folder: Path) -> Path:
    if kind == "other" and not made["other"].exists():
        make_kquant(made["other"], seed=8)
    if kind == "no BOS" and kind not in made:
        made[kind] = folder / "no-bos.gguf"
        with_metadata(open_file(made["claim"]), made[kind], {"tokenizer.ggml.add_bos_token": False})
    if kind == "BOS" and kind not in made:
        made[kind] = folder / "bos.gguf"
        with_metadata(open_file(made["claim"]), made[kind], {"tokenizer.ggml.add_bos_token": True})
    if kind == "layers" and kind not in made:
        made[kind] = some_layers(open_file(made["claim"]), folder / "layers.gguf")
    if kind == "tuned" and kind not in made:
        made[kind] = tuned(open_file(made["claim"]), folder / "tuned.gguf")
    if kind not in made:
        made[kind] = folder / f"{kind}.gguf"
        quantize(open_file(made["claim"]), made[kind], mix_by_name(kind), allow_requantize=True)
    return made[kind]


def with_metadata(file: GGUFFile, path: Path, changes: dict[str, Any]) -> Path:
    """The file with some metadata changed."""
    kept = {key: file.metadata.typed(key) for key in file.metadata if key not in changes}
    write(path, kept | changes, [Tensor(t.name, t.shape, t.type, file.raw(t.name)) for t in file.tensors.values()])
    return path


def tuned(file: GGUFFile, path: Path) -> Path:
    """The file with the norms of its layers changed by a few percent, as a light fine-tune does."""
    rng, tensors = np.random.default_rng(4), []
    for t in file.tensors.values():
        raw = file.raw(t.name)
        if "norm" in t.name and t.type.name == "F32":
            values = np.frombuffer(raw.tobytes(), np.float32)
            raw = (values * (1 + 0.06 * rng.standard_normal(values.size))).astype(np.float32).view(np.uint8)
        tensors.append(Tensor(t.name, t.shape, t.type, raw.reshape(file.raw(t.name).shape)))
    write(path, {key: file.metadata.typed(key) for key in file.metadata}, tensors)
    return path


def some_layers(file: GGUFFile, path: Path) -> Path:
    """The file with the matrices of three layers moved by 10 %, as a short fine-tune of these layers does."""
    rng, tensors = np.random.default_rng(5), []
    for t in file.tensors.values():
        raw = file.raw(t.name)
        if t.name.startswith(("blk.1.", "blk.2.", "blk.3.")) and len(t.shape) > 1:
            values = decode(t.type, raw)
            moved = values + 0.1 * float(values.std()) * rng.standard_normal(values.shape)
            raw = encode(t.type, moved.astype(np.float32)).reshape(raw.shape)
        tensors.append(Tensor(t.name, t.shape, t.type, raw))
    write(path, {key: file.metadata.typed(key) for key in file.metadata}, tensors)
    return path


def figures(found: AuditResult, words: str) -> dict[str, Any]:
    """The figures of an audit that the page shows; `words` are those of the right answer."""
    said = "; ".join(f"{f.words} ({f.confidence:.2f})" for f in found.findings)
    detected_at = next((i + 1 for i, v in enumerate(found.path) if v >= -math.log(found.alpha)), None)
    tokens = found.places if found.reading.top else found.reading.tokens  # a text alone has tokens that do not count
    return {
        "verdict": found.verdict, "said": said, "named": named(found, words), "tokens": tokens,
        "requests": found.requests,
        "detected_after": None if detected_at is None else round(detected_at * tokens / found.blocks),
        "seconds": round(found.seconds, 1), "sure": max((f.confidence for f in found.findings), default=0.0),
    }  # fmt: skip


def named(found: AuditResult, words: str) -> bool:
    """Does the first finding say the words, or one that fits as well?"""
    first = found.findings[0] if words and found.findings else None
    return first is not None and any(words in said for said in (first.words, *first.equivalent))
