"""Receipts of prompts with pictures: a replay needs the pictures, and another picture is found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.cli import main
from assay.errors import AssayError
from assay.runtime.opening import OpenOptions, open_model
from assay.runtime.params import SamplerParams
from assay.runtime.pictured_prompt import prompt_with_pictures
from assay.runtime.receipt_replay import replay
from assay.runtime.receipts import Receipt, Signer, header_of, make_receipt, read_receipt
from assay.runtime.scheduler import Scheduler, deliver
from assay.runtime.sequence import Job
from assay.vision.encode import encode_picture
from assay.vision.rows import ImagePrompt, ImageRows

pytest.importorskip("cryptography")
DATA = Path(__file__).parents[1] / "data" / "vision"
PARAMS = SamplerParams(temp=0.9, top_k=20, seed=7, repeat_penalty=1.2)


def picture_file(path: Path, seed: int) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 256, 3600, np.uint8)
    path.write_bytes(b"P6\n40 30\n255\n" + pixels.tobytes())
    return path


def images_of(prompt: ImagePrompt) -> list[ImageRows]:
    return [piece for piece in prompt.pieces if isinstance(piece, ImageRows)]


@pytest.fixture(scope="module", params=["gemma3", "qwen3vl"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Receipt]:
    path, folder = DATA / f"{request.param}-text.gguf", tmp_path_factory.mktemp("receipt")
    picture = picture_file(folder / "p.ppm", 3)
    on = open_model(path, OpenOptions(threads=1, engine="cpu", cache_size=2048))
    shown = encode_picture(on.pictures.projector, picture.read_bytes())
    ids, images = prompt_with_pictures(on.tokenizer, "a <__media__> b", [shown])
    engine = on.engine()
    scheduler = Scheduler(engine, on.tokenizer, n_ctx=256)
    sequence = scheduler.make(Job(ids, PARAMS, 5, images=images, receipt=True), lambda update: None)
    scheduler.add([sequence])
    while not sequence.finished:
        deliver(scheduler.step())
    header = header_of(on.file.sha256, engine.arithmetic, PARAMS, sequence.seed, ids, constrained=False, images=images)
    receipt = make_receipt(header, ids, sequence.ids[len(ids) :], sequence.row_digests, Signer(bytes(range(32))))
    engine.close()
    return path, picture, read_receipt(json.loads(json.dumps(receipt.to_dict())))


def test_a_replay_with_the_picture_has_the_same_bits(made: tuple[Path, Path, Receipt], tmp_path: Path) -> None:
    path, picture, receipt = made
    file = tmp_path / "receipt.json"
    file.write_text(json.dumps(receipt.to_dict()))
    asked = ["verify", str(file), "-m", str(path), "-t", "1"]
    assert main([*asked, "--image", str(picture)]) == 0
    assert main([*asked, "--image", str(picture_file(tmp_path / "other.ppm", 4))]) == 1
    assert main(asked) == 2


def test_a_moved_picture_breaks_the_chain(made: tuple[Path, Path, Receipt]) -> None:
    path, picture, receipt = made
    on = open_model(path, OpenOptions(threads=1, engine="cpu"))
    rows = images_of(encode_picture(on.pictures.projector, picture.read_bytes()))
    moved = [{**one, "at": one["at"] + 1} for one in receipt.header["pictures"]]
    found = replay(replace(receipt, header={**receipt.header, "pictures": moved}), on.model, pictures=rows)
    assert not found and found.reason.startswith("chain")


def test_a_header_that_is_none_is_refused(made: tuple[Path, Path, Receipt]) -> None:
    from assay.runtime.receipt_replay import placed_pictures

    _, _, receipt = made
    for wrong in ("x", [1], [{"at": 1}], [{"at": True, "rows": 1, "digest": ""}]):
        with pytest.raises(AssayError, match="expected a list"):
            placed_pictures(replace(receipt, header={**receipt.header, "pictures": wrong}), [])
