"""`assay export-web`: a folder with a page that runs a model in the browser, served by any web host.

    index.html, page.js           the page
    worker.js, runner.js          run the plan on WebGPU
    tokenizer.js                  text to ids and back
    plan.json, weights.bin        kernels, dispatches, vocabulary and chat frame; the packed weights

The browser computes the cpu engine's bits. `plan.json` has the hash of the logits of a few tokens, computed here by the
cpu engine, and the page runs only in a tier of arithmetic that gives it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np

from assay.engines import create
from assay.engines.contract import Chunk, pages_for
from assay.engines.wgpu.exported_plan import KV_TYPE, exported_plan
from assay.errors import AssayError
from assay.models import Model
from assay.runtime.opening import Opened
from assay.system.stages import BYTES, stage
from assay.text import ChatTemplate
from assay.text.exported_tokenizer import exported_tokenizer

ASSETS = Path(__file__).parent / "website"
_CHECKED = 3  # tokens whose logits the page compares before it answers
_TEXTS = ("Hello", " two  spaces ", "a\nb", "{{ x }} <b>", "é日")
_MESSAGES = [(text,) for text in _TEXTS]
_CONVERSATIONS = [*_MESSAGES, _TEXTS[:3], _TEXTS[1:4], _TEXTS, (*_TEXTS[::-1], *_TEXTS[1:3])]


@dataclass(frozen=True)
class ExportedSite:
    """What was written."""

    folder: Path
    weights: int  # bytes
    context: int
    dispatches: int  # a token


def export_web(opened: Opened, folder: Path, raw: bool = False) -> ExportedSite:
    """Write the folder; `raw` leaves out the chat template.

    Raises AssayError where the model, its vocabulary or its template cannot run in a browser.
    """
    model, context = opened.model, opened.n_ctx
    tokenizer = exported_tokenizer(opened.tokenizer)
    frame = chat_frame(opened.template) if opened.template and not raw else None
    if model.graph.state.per_sequence or not model.graph.generates:
        raise AssayError(f"{model.file.path.name}: only decoders without recurrent layers can be exported to a page")
    plan, arrays = exported_plan(model, context)
    plan |= {
        "model": model.file.get_str("general.name", None) or model.file.path.stem,
        "tokenizer": tokenizer,
        "frame": frame,
        "check": _recorded_logits(model),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for asset in sorted(ASSETS.iterdir()):
        if asset.is_file():
            shutil.copyfile(asset, folder / asset.name)
    total = sum(len(array) for array in arrays)
    with open(folder / "weights.bin", "wb") as file, stage("writing weights", total, BYTES) as tell:
        written = 0
        for array in arrays:
            written += file.write(array.tobytes())
            tell(written)
    (folder / "plan.json").write_text(json.dumps(plan, separators=(",", ":")))
    return ExportedSite(folder, total, context, len(plan["programs"][0]["dispatches"]))


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
    the white space around them. `next` is None where the template changes earlier turns: the page then has one message
    and one answer. Raises AssayError if the template does more than frame the first message.
    """

    def rendered(*texts: str) -> str:
        roles = cycle(("user", "assistant"))
        return template.render(
            [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)],
            add_generation_prompt=True,
        )

    mark = "\u2063message\u2063"
    before, found, after = rendered(mark).partition(mark)
    try:
        _, asked, following, _ = rendered(mark, mark, mark).split(mark)
    except (AssayError, ValueError):  # a template for one message
        asked = following = None
    for next_, samples in ((following, _CONVERSATIONS), (None, _MESSAGES)):
        for trimmed in product((False, True), repeat=2) if found else ():
            frame = {"before": before, "asked": asked, "next": next_, "after": after, "trimmed": list(trimmed)}
            if (next_ is not None or samples is _MESSAGES) and all(rendered(*t) == framed(frame, t) for t in samples):
                return frame
    raise AssayError("the chat template changes a message; a page can only put text around it; export with --raw")


def framed(frame: Mapping[str, Any], texts: Sequence[str]) -> str:
    """A conversation as the page renders it."""
    shown = [text.strip() if frame["trimmed"][i % 2] else text for i, text in enumerate(texts)]
    turns = [text + (frame["next"] if i % 2 else frame["asked"]) for i, text in enumerate(shown[:-1])]
    return "".join([frame["before"], *turns, shown[-1], frame["after"]])
