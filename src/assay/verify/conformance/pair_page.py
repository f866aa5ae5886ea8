"""Two files of one model on one self-contained page: the answer in words, then every tensor and node."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from assay.system.documents import off_by, paper, rounded, table


def page(found: Mapping[str, Any], lines: Iterable[str]) -> str:
    """The page as text; `lines` are the summary for a person."""
    title = f"{Path(found['a']).name} against {Path(found['b']).name}"
    tensors = (_row(t, " / ".join(t["types"]), _times(t), t["explained"] is False) for t in found["weights"])
    nodes = (_row(n) for n in found["nodes"])
    return paper(
        title,
        (line.strip() for line in lines),
        [
            ("Weights", table(("tensor", "types", "off by", "-cosine", "times rounding", "-"), tensors)),
            ("Activations", table(("node", "off by", "-cosine", "-"), nodes)),
        ],
    )


def _times(tensor: Mapping[str, Any]) -> str:
    return "" if not tensor["rounding"] else f"{rounded(tensor['nmse'] / tensor['rounding'])}×"


def _row(one: Mapping[str, Any], types: str | None = None, times: str = "", bad: bool = False) -> str:
    cells = [
        f"<td class=name>{html.escape(one['name'])}</td>",
        "" if types is None else f"<td>{html.escape(types)}</td>",
        f'<td title="nmse {one["nmse"]:.2e}">{off_by(one["nmse"])}</td>',
        f"<td class=less>{one['cosine']:.8f}</td>",
        "" if types is None else f"<td>{times}</td>",
        f'<td class="track less"><span class=bar style="width:{_width(one["nmse"]):.0f}%"></span></td>',
    ]
    return f"<tr{' class=bad' if bad else ''}>{''.join(cells)}</tr>\n"


def _width(nmse: float) -> float:
    """1e-10 and less has no bar, 1 and more a whole one."""
    return 100 * min(1.0, max(0.0, 1 + math.log10(max(nmse, 1e-10)) / 10))
