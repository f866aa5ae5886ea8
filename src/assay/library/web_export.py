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
from collections.abc import Mapping
from dataclasses import dataclass
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
_SAMPLES = ("Hello", " two  spaces ", "a\nb", "{{ x }} <b>", "é日")


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
    """The text before and after a user's message. Raises AssayError if the template does more than frame it."""

    def rendered(text: str) -> str:
        return template.render([{"role": "user", "content": text}], add_generation_prompt=True)

    mark = "\u2063message\u2063"
    before, found, after = rendered(mark).partition(mark)
    for trimmed in (False, True):
        if found and all(
            rendered(text) == before + (text.strip() if trimmed else text) + after for text in _SAMPLES
        ):  # fmt: skip
            return {"before": before, "after": after, "trimmed": trimmed}
    raise AssayError("the chat template changes a message; a page can only put text around it; export with --raw")
