"""`assay export-web`: a folder with a page that runs a model in the browser, served by any web host.

    index.html, page.js           the page
    worker.js, runner.js          run the plan on WebGPU
    weights.js, repack.js         read the model's file and pack its weights for the kernels
    tokenizer.js                  text to ids and back
    plan.json                     kernels, dispatches, places of the weights, vocabulary and chat frame
    packed.bin                    constants, RoPE tables, and tensors of types that the page does not pack
    model.gguf                    the model's own file, or a file for each part of a split one

The browser computes the cpu engine's bits. `plan.json` has the hash of the logits of a few tokens, computed here by the
cpu engine. The page runs only in a tier of arithmetic that gives this hash. `web_plan_process.py` makes plans for
servers.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np

from assay.engines import create
from assay.engines.contract import Chunk, pages_for
from assay.engines.wgpu.exported_plan import KV_TYPE, exported_plan, write_packed
from assay.errors import AssayError
from assay.gguf import FilePart, GGUFFile
from assay.models import Model
from assay.runtime.opening import Opened
from assay.system.stages import note
from assay.text import ChatTemplate
from assay.text.exported_tokenizer import exported_tokenizer

ASSETS = Path(__file__).parent / "website"
_CHECKED = 3  # tokens whose logits the page compares before it answers
_TEXTS = ("Hello", " two  spaces ", "a\nb", "{{ x }} <b>", "é日")
_MESSAGES = [(text,) for text in _TEXTS]
_CONVERSATIONS = [*_MESSAGES, _TEXTS[:3], _TEXTS[1:4], _TEXTS, (*_TEXTS[::-1], *_TEXTS[1:3])]


PACKED = "packed.bin"


@dataclass(frozen=True)
class ExportedSite:
    """What was written."""

    folder: Path
    model: int  # bytes of the model's files
    packed: int  # bytes of packed.bin
    context: int
    dispatches: int  # a token


def export_web(opened: Opened, folder: Path, raw: bool = False, with_model: bool = True) -> ExportedSite:
    """Write the folder; `raw` leaves out the chat template. Without the model, the page asks its user for the file.

    Raises AssayError where the model, its vocabulary or its template cannot run in a browser.
    """
    site = write_plan(opened, folder, raw)
    for asset in sorted(ASSETS.iterdir()):
        if asset.is_file():
            shutil.copyfile(asset, folder / asset.name)
    if with_model:
        for name, part in model_files(opened.model.file).items():
            _link_or_copy(part.path, folder / name)
    return site


def write_plan(
    opened: Opened, folder: Path, raw: bool = False, most_packed: int | None = None, served: str | None = None
) -> ExportedSite:
    """Write plan.json and packed.bin into the folder; an error if the latter would have more than `most_packed` bytes.

    `served` is the model's name on the server that serves the page; None for a folder.
    """
    model, context = opened.model, opened.n_ctx
    tokenizer = exported_tokenizer(opened.tokenizer)
    frame = chat_frame(opened.template) if opened.template and not raw else None
    if model.graph.state.per_sequence or not model.graph.generates:
        raise AssayError(f"{model.file.path.name}: only decoders without recurrent layers can be exported to a page")
    note("placing weights")
    plan, packed = exported_plan(model, context)
    size = sum(tensor.bytes for tensor in packed)
    if most_packed is not None and size > most_packed:
        raise AssayError(
            f"{model.file.path.name}: a page does not pack tensors of all of its types ({size >> 20} MiB packed here, "
            f"expected at most {most_packed >> 20}); quantise the model to another type, or use `assay export-web`"
        )
    note("computing the logits that the page checks")
    plan |= {
        "model": model.file.get_str("general.name", None) or model.file.path.stem,
        "tokenizer": tokenizer,
        "frame": frame,
        "check": _recorded_logits(model),
        "served": served,
    }
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / PACKED, "wb") as file:
        size = write_packed(packed, file)
    plan["files"] = [{"name": PACKED, "bytes": size}, *_described(model.file)]
    (folder / "plan.json").write_text(json.dumps(plan, separators=(",", ":")))
    return ExportedSite(folder, model.file.size, size, context, len(plan["programs"][0]["dispatches"]))


def model_files(file: GGUFFile) -> dict[str, FilePart]:
    """The parts of a model under the names that a page asks for."""
    if len(file.parts) == 1:
        return {"model.gguf": file.parts[0]}
    return {f"model-{i:05}-of-{len(file.parts):05}.gguf": part for i, part in enumerate(file.parts, 1)}


def _described(file: GGUFFile) -> list[dict[str, Any]]:
    """The model's files as a page knows them: by size and the hash of the header, which names every tensor."""
    found = []
    for name, part in model_files(file).items():
        header = min((tensor.offset for tensor in part.tensors), default=len(part.data))
        digest = hashlib.sha256(part.data[:header].data).hexdigest()
        row = {"name": name, "own": part.path.name, "bytes": len(part.data), "header": header, "sha256": digest}
        found.append(row)
    return found


def _link_or_copy(source: Path, target: Path) -> None:
    """The file under another name: a hard link, which takes no space, or else a copy."""
    target.unlink(missing_ok=True)  # it may be a link to another model, which must not be written
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def _recorded_logits(model: Model) -> dict[str, Any]:
    """A few tokens and the hash of the last one's logits, by the cpu engine."""
    tokens = np.arange(1, 1 + _CHECKED, dtype=np.int32) * 7 % model.hparams.n_vocab
    engine = create("cpu", model, n_pages=pages_for(_CHECKED), kv_type=KV_TYPE)
    try:
        logits = engine.forward([Chunk(tokens, 0, np.zeros(1, np.int32))])[0].logits
    finally:
        engine.close()
    digest = hashlib.sha256(np.ascontiguousarray(logits[0], "<f4").tobytes()).hexdigest()
    return {"tokens": tokens.tolist(), "sha256": digest}


def chat_frame(template: ChatTemplate) -> Mapping[str, Any]:
    """The texts around the messages of a conversation, in which user and model take turns.

    `before` stands before the first message, `asked` between a question and its answer, `next` between an answer and
    the next question, `after` behind the last question. `trimmed` says of user and model whether their messages lose
    the white space around them. Where the template changes earlier turns, `next` has no value: the page then has one
    message and one answer. Raises AssayError if the template does more than frame the first message.
    """

    def rendered(*texts: str) -> str:
        roles = cycle(("user", "assistant"))
        return template.render(
            [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)],
            add_generation_prompt=True,
        )

    mark = "\u2063message\u2063"
    before, found, after = rendered(mark).partition(mark)
    tried: list[tuple[str, str | None, Sequence[tuple[str, ...]]]] = [("", None, _MESSAGES)]
    with suppress(AssayError, ValueError):  # a template for one message
        _, asked, following, _ = rendered(mark, mark, mark).split(mark)
        tried.insert(0, (asked, following, _CONVERSATIONS))
    for between, next_, samples in tried if found else ():
        for trimmed in product((False, True), repeat=2):
            frame = {"before": before, "asked": between, "next": next_, "after": after, "trimmed": list(trimmed)}
            if all(rendered(*texts) == framed(frame, texts) for texts in samples):
                return frame
    raise AssayError("the chat template changes a message; a page can only put text around it; export with --raw")


def framed(frame: Mapping[str, Any], texts: Sequence[str]) -> str:
    """A conversation as the page renders it."""
    shown = [text.strip() if frame["trimmed"][i % 2] else text for i, text in enumerate(texts)]
    turns = [text + (frame["next"] if i % 2 else frame["asked"]) for i, text in enumerate(shown[:-1])]
    return "".join([frame["before"], *turns, shown[-1], frame["after"]])
