"""Grading an engine's answers to a kit: each item is right (and in which arithmetic), wrong, or missing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.system.stages import each
from assay.system.text_files import read_text
from assay.verify.dumps.load import load_dump
from assay.verify.pictures.picture_dump import PictureDump, any_planes, sort_arrays

Array = NDArray[Any]


@dataclass(frozen=True)
class Grade:
    """One item: `verdict` is `exact`, the name of an arithmetic, `wrong` or `missing`."""

    section: str
    item: str
    verdict: str
    detail: str = ""

    @property
    def passed(self) -> bool:
        return self.verdict not in ("wrong", "missing")


@dataclass(frozen=True)
class Score:
    """All grades; true if nothing is wrong."""

    grades: tuple[Grade, ...]

    def __bool__(self) -> bool:
        return not any(g.verdict == "wrong" for g in self.grades)

    def totals(self) -> dict[str, Counter[str]]:
        found: dict[str, Counter[str]] = {}
        for g in self.grades:
            found.setdefault(g.section, Counter())["right" if g.passed else g.verdict] += 1
        return found


def score_kit(kit: Path, results: Path) -> Score:
    """Grade the files in `results`; an empty folder is an error."""
    return total_score(results, tuple(_graded(kit, results)))


def _graded(kit: Path, results: Path) -> Iterator[Grade]:
    for section in each(list(SECTIONS), "grading", "sections"):
        yield from grade_section(kit, results, section)


def grade_section(kit: Path, results: Path, section: str) -> Iterator[Grade]:
    """The grades of one of SECTIONS; sections do not depend on each other."""
    manifest = read_manifest(kit)
    if not results.is_dir():
        raise AssayError(f"{results}: not a folder of results; the kit's README.md says what goes into it")
    return SECTIONS[section](kit, manifest, results)


def total_score(results: Path, grades: tuple[Grade, ...]) -> Score:
    """All grades together."""
    if all(g.verdict == "missing" for g in grades):
        raise AssayError(f"{results}: holds none of the kit's results; expected {', '.join(FOLDERS)} or text.json")
    return Score(grades)


def read_manifest(kit: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(read_text(kit / "manifest.json", "a manifest; make a kit with `assay kit MODEL -o DIR`"))
    except (OSError, ValueError) as error:
        raise AssayError(f"{kit}: not a kit ({error}); make one with `assay kit MODEL -o DIR`") from None
    if not isinstance(manifest, dict) or manifest.get("assay_kit") != 1:
        raise AssayError(f"{kit}/manifest.json: not a kit of version 1 (found {manifest!s:.40})")
    return manifest


def expected(kit: Path, where: dict[str, Any], dtype: str = "<f4") -> Array:
    """The numbers a manifest entry points at."""
    shape = tuple(where["shape"])
    count = int(np.prod(shape))
    data = np.fromfile(kit / where["file"], dtype, count, offset=where["offset"])
    if data.size != count:
        raise AssayError(f"{kit / where['file']}: shorter than the manifest says; make the kit again")
    return data.reshape(shape)


def _answers(
    kit: Path, manifest: dict[str, Any], results: Path, section: str, label: str, key: str, ending: str = ""
) -> Iterator[Any]:
    """For each item of a section (item, the engine's numbers, the expected ones), or a grade where there are none."""
    for item in manifest.get(section, ()):
        if key not in item:
            continue
        name, want = f"{item[label]}{ending}", expected(kit, item[key])
        path = results / section / f"{name}.bin"
        if not path.exists():
            yield Grade(section, name, "missing")
        elif (size := path.stat().st_size) != 4 * want.size:
            shape = f"float32 of shape {list(want.shape)}"
            yield Grade(section, name, "wrong", f"{size} bytes (expected {4 * want.size}, {shape})")
        else:
            yield item, np.fromfile(path, "<f4").reshape(want.shape), want


def _blocks(kit: Path, manifest: dict[str, Any], results: Path) -> Iterator[Grade]:
    for found in _answers(kit, manifest, results, "blocks", "type", "values"):
        yield found if isinstance(found, Grade) else _block(*found)


def _block(item: dict[str, Any], got: Array, want: Array) -> Grade:
    bad = np.flatnonzero(got != want)
    if not bad.size:
        return Grade("blocks", item["type"], "exact")
    lanes, first = np.unique(bad % item["block_size"]), int(bad[0])
    where = f"{bad.size} of {want.size} values; {lanes.size} of {item['block_size']} places in the block"
    values = f"found {got.flat[first]:g}, expected {want.flat[first]:g}"
    return Grade("blocks", item["type"], "wrong", f"{where}, first {first} ({values})")


def _ops(kit: Path, manifest: dict[str, Any], results: Path) -> Iterator[Grade]:
    for key, ending in (("output", ""), ("state_after", ".state")):
        for found in _answers(kit, manifest, results, "ops", "op", key, ending):
            if isinstance(found, Grade):
                yield found
            else:
                item, got, want = found
                yield _compare("ops", f"{item['op']}{ending}", got, want, item["nmse"])


def _compare(section: str, item: str, got: Array, want: Array, limits: dict[str, float]) -> Grade:
    a, b = got.astype(np.float64), want.astype(np.float64)
    if not np.array_equal(np.isneginf(a), masked := np.isneginf(b)):
        return Grade(section, item, "wrong", f"masked elsewhere at {int(np.sum(np.isneginf(a) != masked))} places")
    a, b = np.where(masked, 0, a), np.where(masked, 0, b)
    power = float(np.sum(b * b))
    nmse = float(np.sum((a - b) ** 2)) / power if power else float(np.any(a != b))
    for arithmetic, limit in sorted(limits.items(), key=lambda pair: pair[1]):
        if nmse <= limit:
            return Grade(section, item, arithmetic, f"nmse {nmse:.1e}")
    where = np.unravel_index(int(np.nanargmax(np.abs(a - b))), a.shape)
    worst = f"largest error at {tuple(map(int, where))} (found {a[where]:g}, expected {b[where]:g})"
    return Grade(section, item, "wrong", f"nmse {nmse:.1e} (limit {max(limits.values()):.1e}); {worst}")


def _text(manifest: dict[str, Any], results: Path) -> Iterator[Grade]:
    path = results / "text.json"
    try:
        answers = json.loads(read_text(path, "answers; write a JSON object")) if path.exists() else {}
    except ValueError as error:
        raise AssayError(f"{path}: not JSON ({error})") from None
    for section, key in (("tokenizer", "ids"), ("template", "text")):
        given = answers.get(section) if isinstance(answers, dict) else None
        cases = [case for case in manifest.get("text", {}).get(section, ()) if key in case]
        for i, case in enumerate(cases):
            label = repr(case.get("text", ""))[:40] if section == "tokenizer" else f"chat {i}"
            if not isinstance(given, list) or i >= len(given) or given[i] is None:
                yield Grade(section, label, "missing")
            elif given[i] == case[key]:
                yield Grade(section, label, "exact")
            else:
                yield Grade(section, label, "wrong", f"found {given[i]!r:.60}, expected {case[key]!r:.60}")


def _probes(kit: Path, manifest: dict[str, Any], results: Path) -> Iterator[Grade]:
    dumps = _dumps(results / "probes")
    for probe in manifest.get("probes", ()):
        for run in range(1, probe["runs"] + 1):
            stem = probe["id"] if run == 1 else f"{probe['id']}.{run}"
            if stem not in dumps:
                yield Grade("probes", stem, "missing")
            else:
                yield from _one_arithmetic(list(_probe(kit, probe, stem, dumps[stem])), probe)


def _one_arithmetic(grades: list[Grade], probe: dict[str, Any]) -> Iterator[Grade]:
    """A run has one arithmetic, the one that explains most of its nodes; a node that needs a coarser one is wrong."""
    order = list(probe["nodes"][0]["nmse"])
    passed = sorted(order.index(g.verdict) for g in grades if g.passed)
    common = passed[len(passed) * 3 // 4] if passed else len(order)
    for g in grades:
        if g.passed and order.index(g.verdict) > common:
            detail = f"{g.detail}; would pass as {g.verdict}, but the rest of the run is {order[common]}"
            g = Grade(g.section, g.item, "wrong", detail)
        yield g


def _probe(kit: Path, probe: dict[str, Any], stem: str, path: Path) -> Iterator[Grade]:
    dump = load_dump(path)
    if dump.tokens and list(dump.tokens) != probe["tokens"]:
        yield Grade("probes", stem, "wrong", f"other tokens were fed (found {list(dump.tokens)[:8]})")
        return
    known = {node["name"]: node for node in probe["nodes"]}
    found = {name: value for name in dump.by_name if name in known and (value := dump.values(name)) is not None}
    if not found:
        yield Grade("probes", stem, "missing", "the dump holds none of the kit's nodes")
    for name, value in found.items():
        parts = [_part(kit, f"{stem} {name}", value, known[name], part) for part in known[name]["parts"]]
        yield next((g for g in parts if not g.passed), parts[-1])


def _part(kit: Path, item: str, value: Array, node: dict[str, Any], part: dict[str, Any]) -> Grade:
    """The rows that one step computed. A dump may hold all rows or the last ones only."""
    want, (start, stop) = expected(kit, part), part["rows"]
    axis = node.get("axis", 0)
    rows = slice(start, stop) if value.shape[axis] >= stop else slice(start - stop, None)
    got = (value[rows] if axis == 0 else value[:, rows])[tuple(slice(0, n) for n in want.shape)]
    if got.shape != want.shape:
        return Grade("probes", item, "wrong", f"shape {value.shape} does not hold {want.shape}")
    return _compare("probes", item, got, want, node["nmse"])


def _dumps(folder: Path) -> dict[str, Path]:
    """The dumps of a section by the item that they answer."""
    return {path.stem: path for path in sorted(folder.iterdir())} if folder.is_dir() else {}


def _prompts(kit: Path, manifest: dict[str, Any], results: Path) -> Iterator[Grade]:
    """The language model's run of a prompt with pictures. Ids at the rows of pictures may be any, or left out."""
    dumps = _dumps(results / "prompts")
    for prompt in manifest.get("prompts", ()):
        name = prompt["id"]
        if name not in dumps:
            yield Grade("prompts", name, "missing")
            continue
        dump = load_dump(dumps[name])
        text = [token for token in prompt["tokens"] if token >= 0]
        whole = len(dump.tokens) == len(prompt["tokens"])
        fed = [t for t, right in zip(dump.tokens, prompt["tokens"], strict=False) if not whole or right >= 0]
        if dump.tokens and (fed if whole else list(dump.tokens)) != text:
            yield Grade("prompts", name, "wrong", f"other tokens were fed (found {list(dump.tokens)[:8]})")
            continue
        found = {alias: value for alias in dump.by_name if (value := dump.values(alias)) is not None}
        if "logits" in found:
            found.setdefault("result_output", found["logits"])
        yield from _nodes("prompts", kit, name, prompt, found)


def _pictures(kit: Path, manifest: dict[str, Any], results: Path) -> Iterator[Grade]:
    dumps = _dumps(results / "pictures")
    for picture in manifest.get("pictures", ()):
        name = picture["id"]
        if name not in dumps:
            yield Grade("pictures", name, "missing")
            continue
        names = [node["name"] for node in picture["images"][0]["nodes"]]
        dump = sort_arrays(load_dump(dumps[name]), names, manifest["tower"]["output"])
        for j, image in enumerate(picture["images"]):
            yield from _image(kit, f"{name} image {j}", image, dump, j)


def _image(kit: Path, item: str, image: dict[str, Any], dump: PictureDump, j: int) -> Iterator[Grade]:
    if j in dump.pixels:
        yield _pixels(f"{item} pixels", dump.pixels[j], expected(kit, image["pixels"]), image["step"])
    if j in dump.nodes:
        yield from _nodes("pictures", kit, item, image, dump.nodes[j])
    if j not in dump.pixels and j not in dump.nodes:
        yield Grade("pictures", item, "missing")


def _pixels(item: str, found: Array, want: Array, step: float) -> Grade:
    got = any_planes(np.asarray(found))
    if got is None or got.shape != want.shape:
        return Grade("pictures", item, "wrong", f"shape {np.shape(found)} (expected {want.shape})")
    error = np.abs(got.astype(np.float64) - want)
    if not error.any():
        return Grade("pictures", item, "exact")
    if float(error.max()) <= 1.01 * step:
        return Grade("pictures", item, "rounding", "at most one step of a byte away: another rounding of the resize")
    at = np.unravel_index(int(np.nan_to_num(error, nan=np.inf).argmax()), error.shape)
    values = f"found {got[at]:g}, expected {want[at]:g}"
    return Grade(
        "pictures", item, "wrong",
        f"{int(np.sum(error > step))} of {error.size} values; largest error at {tuple(map(int, at))} ({values}); "
        "`assay diagnose MMPROJ DUMP --image FILE` names the mistake",
    )  # fmt: skip


def _nodes(section: str, kit: Path, stem: str, run: dict[str, Any], found: dict[str, Array]) -> Iterator[Grade]:
    """The nodes of one run, which has one arithmetic."""
    known = {node["name"]: node for node in run["nodes"]}
    mine = {name: value for name, value in found.items() if name in known}
    if not mine:
        yield Grade(section, stem, "missing", "the dump holds none of the kit's nodes")
        return
    grades = [_node(section, kit, f"{stem} {name}", value, known[name]) for name, value in mine.items()]
    yield from _one_arithmetic(grades, run)


def _node(section: str, kit: Path, item: str, value: Array, node: dict[str, Any]) -> Grade:
    """A whole node, or its last rows. Axes of 1 and heads apart are read as the kit has them.

    Where the kit has the rows of decode steps alone, the rows before them are not graded.
    """
    want, (start, end) = expected(kit, node["parts"][0]), node["parts"][0]["rows"]
    if start and want.ndim == 2 and value.size == end * want.shape[1]:
        value = value.reshape(end, -1)[start:]
    if value.size == want.size:
        value = value.reshape(want.shape)
    elif want.ndim == 2 and value.size < want.size and value.size % want.shape[1] == 0:
        value = value.reshape(-1, want.shape[1])
        want = want[-len(value) :]
    if value.shape != want.shape:
        return Grade(section, item, "wrong", f"shape {value.shape} (expected {want.shape})")
    return _compare(section, item, value, want, node["nmse"])


FOLDERS = ("probes/", "ops/", "blocks/", "pictures/", "prompts/")
SECTIONS: dict[str, Callable[[Path, dict[str, Any], Path], Iterator[Grade]]] = {
    "blocks": _blocks,
    "ops": _ops,
    "text": lambda kit, manifest, results: _text(manifest, results),
    "probes": _probes,
    "pictures": _pictures,
    "prompts": _prompts,
}
