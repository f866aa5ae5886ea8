"""Pictures of a conformance kit: what the tower makes of each, and the language model's run of a prompt that has them.

`pictures` has each picture's file. For each image that is made of the picture it has the bytes after resizing and
padding, the pixels that the tower reads, the nodes of the tower and the rows for the language model. `prompts` has the
ids, the rows of pictures among them, positions, and the nodes of the language model. A text engine without a tower can
take the rows from the kit. Values are the definition's in float64. Touch this to put more of a picture into kits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.graph import Graph, Trait, split
from assay.models import Model
from assay.models.pictures import LAST, POSITIONS
from assay.models.vision.tower import Tower
from assay.runtime.image_places import without_rows
from assay.verify.conformance.kit_files import KitFiles, Limits, new_kit, noise_limits
from assay.verify.dumps.observation import token_axis
from assay.verify.faults.vision import plant_tower
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.judge.run_inputs import RunInputs, run_inputs
from assay.verify.pictures.dumped_answer import followed
from assay.verify.pictures.prompt_trials import Placed, fed_prompt
from assay.verify.pictures.tower_trials import tower_model
from assay.verify.thresholds import NEAR_UNITS
from assay.vision.markers import marked
from assay.vision.preprocess import PreparedImage, preprocess
from assay.vision.resize import Bytes

Array = NDArray[Any]
MOST_BYTES = 64 << 20  # of the nodes of one image or prompt; beyond, the outputs of layers are kept
MOST_SCORES = 1 << 24  # scores of a layer up to which noise is simulated; beyond, float32's after many operations
DECODED = 3  # tokens that are fed one by one behind a prompt
BRIEF = ("layer_out", "l_out", "embd", "result_norm", "result_output")


@dataclass(frozen=True)
class KitPictures:
    """The pictures of a kit: the tower, decoded pictures, and a prompt with its text."""

    tower: Tower
    pictures: Sequence[Bytes]
    text: str = ""
    placed: Placed | None = None


def built_in_picture() -> Bytes:
    """The picture of a kit that was given none: colours, edges and noise, wider than high."""
    y, x = np.mgrid[0:37, 0:53]
    waves = np.stack([np.sin(x / a) * np.cos(y / b) for a, b in ((3, 5), (7, 4), (11, 9))], -1)
    noise = np.random.default_rng(5).integers(-20, 21, (37, 53, 3))
    found: Bytes = np.clip(128 + 80 * waves + noise + 40 * ((x // 17 + y // 13) % 2)[..., None], 0, 255).astype(
        np.uint8
    )
    return found


def write_tower_kit(tower: Tower, pictures: Sequence[Bytes], out: Path) -> dict[str, Any]:
    """A kit of a tower alone."""

    def make(files: KitFiles) -> dict[str, Any]:
        return {
            "model": {"file": tower.file.path.name, "sha256": tower.file.sha256, "projector": tower.keys.projector},
            "graph": [str(node) for node in tower.graph],
            **picture_sections(KitPictures(tower, pictures), files),
        }

    return new_kit(out, make, f"# Conformance kit for {tower.file.path.name}\n{README}")


def picture_sections(seen: KitPictures, files: KitFiles, model: Model | None = None) -> dict[str, Any]:
    """The sections of a manifest about pictures."""
    found: dict[str, Any] = {
        "tower": {
            "file": seen.tower.file.path.name,
            "sha256": seen.tower.file.sha256,
            "projector": seen.tower.keys.projector,
            "graph": [str(node) for node in seen.tower.graph],
            "output": seen.tower.graph.output,
        },
        "pictures": [_picture(seen.tower, f"picture-{i}", p, files) for i, p in enumerate(seen.pictures)],
    }
    if model is not None and seen.placed is not None:
        found["prompts"] = [_prompt(model, seen.placed, seen.text, files)]
        found["prompts"].append(_decode(model, seen.placed, seen.text, files))
    return found


def _picture(tower: Tower, name: str, picture: Bytes, files: KitFiles) -> dict[str, Any]:
    height, width, _ = picture.shape
    files.put_bytes(f"{name}.ppm", b"P6\n%d %d\n255\n" % (width, height) + np.ascontiguousarray(picture).tobytes())
    prepared, weights = preprocess(tower.keys, picture), Weights(tower.file)
    return {
        "id": name,
        "file": f"data/{name}.ppm",
        "size": [width, height],
        "markers": [p if isinstance(p, str) else {"image": p} for p in marked(tower.keys.projector, prepared.plan)],
        "images": [_image(tower, image, weights, f"{name}.bin", files) for image in prepared.images],
    }


def _image(tower: Tower, image: PreparedImage, weights: Weights, file: str, files: KitFiles) -> dict[str, Any]:
    base = plant_tower(tower, image.image.size, image.pixels)
    assert base is not None
    at = tuple(int(p) for p in base.given["inp_pos"])
    n = len(at)
    inputs = RunInputs(tower_model(tower), tuple(range(n)), at, base.given, np.zeros((n, n), bool))
    scores = tower.keys.n_head * n * n
    nodes = _nodes(tower.graph, weights, base.given, inputs if scores <= MOST_SCORES else None, n, file, files)
    return {
        "kind": image.image.kind,
        "size": list(image.image.size),
        "grid": list(image.image.grid),
        "resized": files.put(file, image.resized),
        "padded": files.put(file, image.padded),
        "pixels": files.put(file, image.pixels),
        "step": 1 / 255 / min(tower.keys.std),  # how far apart two neighbouring bytes are
        "nodes": nodes,
    }


def _decode(model: Model, placed: Placed, text: str, files: KitFiles) -> dict[str, Any]:
    """The prompt, and tokens fed one by one behind it: the last ones of its own text, so that no answer is drawn."""
    ids, images = placed(True)
    behind = tuple(without_rows(ids, images)[-DECODED:])
    return _prompt(model, followed(placed, behind), text, files, len(behind))


def _prompt(model: Model, placed: Placed, text: str, files: KitFiles, decoded: int = 0) -> dict[str, Any]:
    """A run of the language model. With `decoded` tokens behind the prompt, only their rows are kept."""
    fed = fed_prompt(model, placed, answered=decoded)
    assert fed is not None
    ids, images = placed(True)
    here, n, rows = replace(model, graph=fed.graph), len(ids), fed.rows
    inputs = run_inputs(here, fed.tokens, range(n), rows)
    name = "decode" if decoded else "prompt"
    file = f"{name}.bin"
    entry: dict[str, Any] = {
        "id": name,
        "text": text,
        "tokens": [max(token, -1) for token in ids],
        "steps": [n - decoded, *(1 for _ in range(decoded))],
        "images": [{"slots": [p.start, p.end], "rows": files.put(file, p.image.rows)} for p in images],
        "graph": [str(node) for node in fed.graph],
        "positions": rows[POSITIONS].astype(int).tolist() if POSITIONS in rows else list(range(n)),
    }
    if LAST in rows:
        entry["last_seen"] = rows[LAST].astype(int)[:, 0].tolist()
    scores = max(layer.n_head for layer in model.hparams.layers) * n * n
    kept = inputs if scores <= MOST_SCORES else None
    start = n - decoded if decoded else 0
    return entry | {"nodes": _nodes(fed.graph, Weights(model.file), fed.given, kept, n, file, files, start)}


def _nodes(
    graph: Graph,
    weights: Weights,
    given: dict[str, Array],
    inputs: RunInputs | None,
    n: int,
    file: str,
    files: KitFiles,
    start: int = 0,
) -> list[dict[str, Any]]:
    """The values of nodes from row `start` on, with their limits; without `inputs` the noise is not simulated."""
    names = [node.name for node in graph if not node.has(Trait.CACHES | Trait.SHOWS_STATE | Trait.INDICES)]
    names = [name for name in names if not name.endswith("_of_ids") and "S" not in graph.shapes[name]]
    names = [name for name in names if not (start and token_axis(graph, name))]
    size: Callable[[str], int] = lambda name: math.prod(n if isinstance(d, str) else d for d in graph.shapes[name])  # noqa: E731
    if 4 * sum(map(size, names)) > MOST_BYTES:
        names = [name for name in names if split(name)[0] in BRIEF or name == graph.output]
    values = interpret(graph, weights, given, names)
    limits = {name: _far() for name in names} if inputs is None else noise_limits(inputs, values)
    return [
        {
            "name": name,
            "axis": (axis := token_axis(graph, name)),
            "parts": [{"rows": [start, values[name].shape[axis]], **files.put(file, values[name][start:])}],
            "nmse": limits[name],
        }
        for name in names
        if name in limits
    ]


def _far() -> Limits:
    """Limits of a tower that is too large to simulate: each arithmetic's unit after many operations."""
    return {a.name: float(f"{(NEAR_UNITS * max(a.unit, ARITHMETICS[0].unit)) ** 2:.3g}") for a in ARITHMETICS}


README = """
## Pictures

5. `pictures`: decode `file` (a binary PPM: RGB bytes, row by row). Every image that you make of it has the bytes
   `resized` and `padded`, and `pixels`, what the tower reads: [channel, row, column]. `nodes` are those of the tower,
   whose definition is `tower.graph`; its `output` are the rows for the language model. `markers` are the texts around.
6. `prompts`: the language model's run of `text`, where `<__media__>` is the picture. `tokens` has -1 at the rows of
   images; `images` has these rows, so that an engine without a tower can take them from here. `positions` are t, y, x
   where they have three numbers; `graph` has the definition of every node. `last_seen`, where there is one, is the
   last slot that each slot sees. `steps` says how `tokens` are fed: `decode` is the prompt and then single tokens
   through the cache, whose rows alone it has.

    RESULTS/pictures/ID.npz        (or any dump assay reads) pixels_J, embd_J, and nodes as NAME, or NAME@J of image J
    RESULTS/prompts/ID.npz         (or any dump assay reads) logits and nodes, all rows or the last ones

Pixels must be equal bit for bit; one step of a byte is another rounding of the resize, and no fault.
"""
