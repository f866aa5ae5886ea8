"""Two files of one model on one self-contained page: the answer in words, then every tensor and node."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any


def page(found: Mapping[str, Any], lines: Iterable[str]) -> str:
    """The page as text; `lines` are the summary for a person."""
    names = f"{Path(found['a']).name} against {Path(found['b']).name}"
    tensors = [
        (t["name"], " / ".join(t["types"]), t["nmse"], t["cosine"], _times(t), t["explained"] is False)
        for t in found["weights"]
    ]
    nodes = [(n["name"], "", n["nmse"], n["cosine"], "", False) for n in found["nodes"]]
    verdict, *more = (html.escape(line.strip()) for line in lines)
    said = "<br>".join((f"<b>{verdict}</b>", *more))
    parts = {
        "title": html.escape(names),
        "said": said,
        "weights": _table("tensor", "types", "times rounding", tensors),
        "nodes": _table("node", "", "", nodes),
    }
    template = resources.files("assay.verify.conformance").joinpath("pair.html").read_text("utf-8")
    return re.sub(r"{{assay:(\w+)}}", lambda m: parts[m[1]], template)


def _times(tensor: Mapping[str, Any]) -> str:
    return "" if not tensor["rounding"] else f"{tensor['nmse'] / tensor['rounding']:.2f}"


def _table(what: str, kind: str, times: str, rows: Iterable[tuple[str, str, float, float, str, bool]]) -> str:
    less = " class=less" if times else ""  # a phone has no room for everything
    head = f"<th>{html.escape(what)}</th><th>{html.escape(kind)}</th><th>nmse</th><th{less}>cosine</th><th>{times}</th>"
    body = "".join(
        f"<tr{' class=bad' if bad else ''}><td class=name>{html.escape(name)}</td>"
        f"<td>{html.escape(types)}</td><td>{nmse:.2e}</td><td{less}>{cosine:.8f}</td><td>{ratio}</td>"
        f'<td class=track><span class=bar style="width:{_width(nmse):.0f}%"></span></td></tr>\n'
        for name, types, nmse, cosine, ratio, bad in rows
    )
    return f"<div class=scroll><table><tr>{head}<th class=track></th></tr>\n{body}</table></div>"


def _width(nmse: float) -> float:
    """1e-10 and less has no bar, 1 and more a whole one."""
    return 100 * min(1.0, max(0.0, 1 + math.log10(max(nmse, 1e-10)) / 10))
