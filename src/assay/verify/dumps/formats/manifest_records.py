"""Reads the text that describes raw numbers: a record for each array, and the lists of token ids.

A record is a dictionary of plain keys. These notations are read, in this order:

    a JSON or TOML document, JSON lines      records at any depth; keys of an outer object hold for its records
    `key: value` or `key = value` lines      a record a section, a dash or a repeated key (YAML, INI)
    a table with a head                      `name,offset,shape`
    a line an array                          `q.0 tok=0 offset=320 count=64 f32`, `q.0 f32 8x64 320`

`FIELDS` is the table of keys. Nothing here looks at the data.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

from assay.verify.dumps.formats.element_types import element_type
from assay.verify.dumps.formats.module_names import GENERATED, TOKENS
from assay.verify.dumps.formats.numpy_files import MAX_MEMBERS

Record = dict[str, Any]
DATA = (".bin", ".raw", ".dat", ".data", ".f32", ".f16", ".bf16", ".f64", ".fp32", ".fp16", ".float32", ".float16")
_FIELDS = {
    "name": "name node tensor tensor_name key id label op hook what tag stage site probe var variable buffer which",
    "file": "file path filename data_file bin data_path",
    "offset": "offset start at byte_offset begin pos_bytes offset_bytes byteoffset byte_start start_byte data_offset "
    "off first_byte seek start_elem start_element elem_offset offset_elems element_offset",
    "shape": "shape dims dim dimensions size_shape ne extents",
    "count": "count cnt n numel elems elements n_elem n_elems num_elements nelem n_values values num "
    "floats f32s n_floats nfloats",
    "length": "len length size",
    "bytes": "bytes nbytes n_bytes byte_length byte_size size_bytes bytelength num_bytes byte_len byte_count",
    "range": "data_offsets byte_range range span offsets",
    "row": "tok token pos row position token_index token_pos tok_index t",
    "head": "head h hd head_id head_idx head_index",
    "layer": "layer l layer_id layer_idx block blk layer_index il",
    "step": "step call pass forward phase iteration iter",
    "dtype": "dtype type data_type datatype element_type elem_type elem format precision ggml_type",
    "order": "endian endianness byteorder byte_order",
    "rows": "rows n_rows n_tokens seq seq_len tokens_in_step",
    "cols": "cols columns n_cols width row_len",
}
FIELDS = {key: means for means, keys in _FIELDS.items() for key in keys.split()}
_SECTION = re.compile(
    r"\s*(?:-\s+)?\[{1,2}\s*([^\[\]]{1,200}?)\s*\]{1,2}\s*|\s*(?:-\s+)?[\"']?([\w./ -]{1,200})[\"']?:\s*"
)
_ONE = re.compile(r"\s*(-\s+)?[\"']?([A-Za-z_][\w -]{0,30}?)[\"']?\s*[:=]\s*(\S.{0,100000})")
_PAIR = re.compile(r"([A-Za-z_]{1,20})\s{0,3}[=:]\s{0,3}(\[[\d, x×]{0,80}\]|\([\d, x×]{0,80}\)|[\w.<>/×-]{1,120})")
_IDS = re.compile(
    r"^\W{0,4}(?:prompt[ _]?|input[ _]?)?(?:tokens|token[ _]ids|ids|prompt)\W{1,4}([\d, \]]{1,100000})$", re.IGNORECASE
)
# run lfm2 prompt=[12, 140] then [29, 110]: the prompt, and the ids of the decode steps
_IDS_IN_REMARK = re.compile(
    r"[#;/].{0,80}?\b(?:prompt|tokens|ids)\W{0,3}\[([\d, ]{1,100000})\]"
    r"(?:\W{0,3}\w{0,12}\W{0,3}\[([\d, ]{1,100000})\])?"
)
_LISTED = re.compile(r"[\[(]?\s*\d{1,9}(?:\s*[,x×*]\s*\d{1,9})+\s*[\])]?|[\[(]\s*\d{1,9}\s*,?\s*[\])]")
_WORDS = re.compile(r"\[[^\]]{0,80}\]|\([^)]{0,80}\)|\"[^\"]{0,200}\"|[^\s,;|]+")
_REMARK = re.compile(r"\s{1,8}\([^()]{0,200}\)\s{0,8}$")  # behind the head of a table: (float32, little endian)
_UNIT = re.compile(
    r"[ _]?[\[(][^\[\]()]{0,24}[\])]$|[ _-](?:in[ _-])?(?:floats?|f32|elems?|elements|bytes|values|numbers)$"
)
_FED = re.compile(
    r"\W{0,8}(?:pos(?:ition)?|step|t|i|index)\W{0,3}(\d{1,7})\b\W{1,6}(?:token|tok|id)(?:[ _]?id)?\W{0,4}(\d{1,9})\b",
    re.IGNORECASE,
)
_SEPARATED = re.compile(r"[\t,;|]")
_OF_A_HEAD = {"offset", "shape", "count", "bytes", "dtype", "file", "cols"}  # two of these beside a name
_DEEP = 6


def manifest_records(text: str) -> tuple[list[Record], dict[str, list[int]]]:
    """The records in the order of the text, and the lists of ids by their names."""
    found = _Found()
    document = _document(text)
    if document is not None:
        found.walk(document, "", {}, 0)
    else:
        found.lines(text)
    if sorted(found.fed) == [*range(len(found.fed))]:
        found.ids.setdefault("fed", [found.fed[i] for i in range(len(found.fed))])
    return found.records, found.ids


def whole_numbers(value: Any) -> list[int]:
    """The axes of a shape in any notation: [8, 64], "8x64", "(8, 64)", 64."""
    return [int(n) for n in re.findall(r"\d{1,9}", str(value))] if value not in (None, "") else []


def _document(text: str) -> Any:
    if text.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
    try:
        return tomllib.loads(text) or None
    except (ValueError, RecursionError):
        return None


class _Found:
    """Records and ids so far."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.ids: dict[str, list[int]] = {}
        self.fed: dict[int, int] = {}  # ids that comments give beside positions

    def add(self, record: Record) -> None:
        if record and len(self.records) <= MAX_MEMBERS:
            self.records.append(record)

    def take_ids(self, name: str, value: Any) -> bool:
        """Keep a list of whole numbers below a name for tokens."""
        name = name.lower().replace(" ", "_").replace("-", "_")
        known = name in TOKENS or name in GENERATED or name in ("prompt", "decoded", "input", "decode", "sequence")
        if not known or not isinstance(value, list) or not all(type(v) is int for v in value):
            return False
        self.ids.setdefault(name, value)
        return True

    def walk(self, value: Any, name: str, outer: Record, depth: int) -> None:
        """Records at any depth of a document. Plain keys of an object hold for the records in it."""
        if depth > _DEEP:
            return
        if isinstance(value, list):
            if self.take_ids(name, value):
                return
            shape = 0 < len(value) < 6 and all(type(v) is int and v > 0 for v in value)
            if shape and name and depth > 1:
                self.add({**outer, "name": name, "shape": value})
            elif any(isinstance(v, str) for v in value) and not any(isinstance(v, dict) for v in value):
                self.add({**outer, **positional([str(v) for v in value])})
            else:
                for item in value[: MAX_MEMBERS + 1]:
                    self.walk(item, "", outer, depth + 1)
        elif isinstance(value, dict):
            self._object(value, name, outer, depth)

    def _object(self, value: Record, name: str, outer: Record, depth: int) -> None:
        own = {means: v for k, v in value.items() if (means := FIELDS.get(str(k).lower())) and not _nested(v)}
        ids = [k for k in value if isinstance(value[k], list) and self.take_ids(str(k), value[k])]
        for key in ids:
            own.pop(FIELDS.get(str(key).lower(), ""), None)
        inner = [(k, v) for k, v in value.items() if _nested(v)]
        described = own.keys() & {"shape", "offset", "range", "count", "length", "bytes"}
        if described and (not inner or {"file", "shape"} <= own.keys()):
            self.add({**outer, **({"name": name} if name else {}), **own})
            return
        flat = [(k, v) for k, v in value.items() if depth and _is_shape(v) and str(k).lower() not in FIELDS]
        if not inner and not ids and flat and len(flat) == len(value):  # {"tok_emb": [8, 40], …}
            for key, shape in flat:
                self.add({**outer, "name": str(key), "shape": shape})
            return
        kept = {k: v for k, v in own.items() if k in ("file", "dtype", "order", "layer", "step", "row", "rows")}
        if name.lower() not in ("tensors", "arrays", "nodes", "entries", "items", "data", "layers") and depth > 1:
            layer = re.fullmatch(r"(?:layer|block|blk|l)?[._ -]?(\d{1,4})", name, re.IGNORECASE)
            kept |= {"layer": int(layer[1])} if layer else {}
        for key, item in inner:
            self.walk(item, str(key), {**outer, **kept}, depth + 1)

    def lines(self, text: str) -> None:
        """Records of a text by lines: key and value lines, a table, or a line for each array."""
        head: list[str] = []
        outer: Record = {}
        now: Record = {}
        inside = False  # behind the first section, dash or name
        for line in text.splitlines():
            plain = line.strip()
            if m := _IDS.match(line):
                self.ids.setdefault("tokens", [int(n) for n in re.findall(r"\d{1,9}", m[1])])
            elif m := _IDS_IN_REMARK.match(plain):
                for name, listed in zip(("tokens", "decoded"), m.groups(), strict=True):
                    if listed:
                        self.ids.setdefault(name, whole_numbers(listed))
            elif plain[:1] in "#;/-" and (m := _FED.match(plain)):
                self.fed.setdefault(int(m[1]), int(m[2]))
            elif not plain or plain.startswith(("//", "---")):
                continue
            elif plain[:1] == "{":
                try:
                    self.walk(json.loads(plain.rstrip(",")), "", outer, 1)
                except (ValueError, RecursionError):
                    continue
            elif (m := _SECTION.fullmatch(line)) and FIELDS.get((m[1] or m[2]).lower()) is None:
                self._end(now, outer, inside)
                name = (m[1] or m[2]).strip(" \"'")
                inside = name.lower() not in ("tensors", "arrays", "entries", "nodes", "meta", "header", "files")
                now = {"name": re.sub(r"^(?:tensors?|arrays?|nodes?)\.", "", name)} if inside else {}
            elif (m := _ONE.fullmatch(line)) and len(_PAIR.findall(line)) < 2 and not plain.startswith("#"):
                key, value = FIELDS.get(m[2].strip().lower(), ""), m[3].strip(" \"',")
                ids = whole_numbers(value)
                if value[:1] == "[" and self.take_ids(m[2].strip(), ids):
                    continue
                if m[1] or key in now or (key == "name" and not inside):
                    self._end(now, outer, inside)
                    now, inside = {}, inside or bool(m[1]) or key == "name"
                if key:
                    now[key] = value
            else:
                head = self._line(plain.lstrip("# "), head, outer, remark=plain.startswith("#"))
        self._end(now, outer, inside)

    def _end(self, now: Record, outer: Record, inside: bool) -> None:
        """A record is complete; keys before the first one hold for all."""
        if inside:
            self.add({**outer, **now})
        else:
            outer |= now

    def _line(self, line: str, head: list[str], outer: Record, remark: bool) -> list[str]:
        """A line for one array, or the head of a table; the head for the next lines. A remark is about all arrays."""
        keys = [_field(cell) for cell in _cells_of(_REMARK.sub("", line))]
        cells = _cells_of(line)
        if len(_OF_A_HEAD.intersection(keys)) > 1 and "name" in keys:
            return keys
        words = [w.strip(" \"'") for w in _WORDS.findall(line)]
        if head and len(cells := cells if len(cells) == len(head) else words) == len(head):
            self.add({**outer, **{k: c for k, c in zip(head, cells, strict=True) if k and c}})
        elif pairs := [(k.lower(), v) for k, v in _PAIR.findall(line)]:
            rest = _PAIR.sub(" ", line).split()
            kind = next((w for w in rest[1:] if element_type(w)), "")
            said = {FIELDS[k]: v for k, v in pairs if k in FIELDS}
            self.add({**outer, **({"name": rest[0]} if rest else {}), **({"dtype": kind} if kind else {}), **said})
        elif remark:
            kind = next((w.rstrip(",") for w in words if element_type(w.rstrip(","))), "")
            if kind and not self.records and kind != "f":
                outer.setdefault("dtype", kind)
        elif len(words) > 1 and FIELDS.get(words[0].lower()) == "dtype" and (kind := " ".join(words[1:4])):
            if element_type(kind):  # dtype f32le
                outer.setdefault("dtype", kind)
        elif len(words) > 1:
            self.add({**outer, **positional(words)})
        return head


def _field(head: str) -> str:
    """The field that a column's head names; its unit, as in `offset(floats)`, is told by the size of the file."""
    key = head.lower().replace(" ", "_")
    return FIELDS.get(key) or FIELDS.get(_UNIT.sub("", head.lower()).replace(" ", "_"), "")


def _cells_of(line: str) -> list[str]:
    cells = [c.strip(" \"'`") for c in _SEPARATED.split(line.strip("|"))]
    return cells if len(cells) > 1 else line.split()


def positional(words: list[str]) -> Record:
    """A record from its values alone: a name, a type, a shape, a file, an offset, in any order."""
    found: Record = {}
    for word in words:
        text = word.strip(" \"'`")
        if _LISTED.fullmatch(text):
            found.setdefault("shape", whole_numbers(text))
        elif text.isdecimal() and len(text) < 16:
            found.setdefault("bytes" if "offset" in found else "offset", int(text))
        elif "name" in found and element_type(text):
            found.setdefault("dtype", text)
        elif text.lower().endswith(DATA):
            found.setdefault("file", text)
        elif re.match(r"[A-Za-z_]", text):
            found.setdefault("name", text)
    return found if "name" in found or "file" in found else {}


def _nested(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(v, (dict, list, str)) for v in value))


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and 0 < len(value) < 6 and all(type(v) is int and v > 0 for v in value)


def text_records(records: list[Record]) -> Iterator[Record]:
    """Records that can be an array: with a size of their own, or a file."""
    for record in records:
        if record.keys() & {"shape", "count", "length", "bytes", "range", "file", "cols"}:
            yield record
