"""The page of a diagnosis of a picture: the answer, the pixels beside each other, the nodes. One file, no scripts."""

from __future__ import annotations

from html import escape

import numpy as np

from assay.models.vision.tower import Tower
from assay.verify.diagnosis.answer import text as answer_text
from assay.verify.diagnosis.wording import words
from assay.verify.pictures.diagnose_picture import PictureDiagnosis
from assay.verify.pictures.difference_image import data_url, side_by_side
from assay.verify.pictures.tower_trials import tower_model

MOST_IMAGES = 4  # images of which the pixels are shown
_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
pre { white-space: pre-wrap; background: #8882; padding: .8rem; border-radius: .4rem; overflow-x: auto; }
img { max-width: 100%; image-rendering: pixelated; border: 1px solid #8886; }
table { border-collapse: collapse; } td, th { padding: .15rem .7rem .15rem 0; text-align: left; }
.wrong { color: #c22; } .noise { color: #a70; } .same { color: #287; }
"""


def page(found: PictureDiagnosis, tower: Tower) -> str:
    """The whole page."""
    said, model = found.diagnosis, tower_model(tower)
    title = f"{tower.file.path.name} against {found.diff.b}"
    parts = [f"<h1>{escape(_headline(found))}</h1>", f"<p>{escape(title)}</p>"]
    for cause in said.causes:
        told = words(cause, model)
        parts.append(f"<h2>{escape(cause.fault)}, confidence {cause.confidence:.2f}</h2>")
        rows = {"yours": told.wrong, "right": told.right, "fix": told.fix}
        parts += [f"<p><b>{name}</b>: {escape(line)}</p>" for name, line in rows.items() if line]
        lines = "\n".join(f"{language:<8}{line}" for language, line in told.look_for.items())
        parts.append(f"<pre>{escape(lines)}</pre>")
    parts += _pictures(found, tower)
    parts.append(f"<h2>Answer</h2><pre>{escape(answer_text(said, model))}</pre>")
    parts.append("<h2>Nodes</h2><table><tr><th>node<th>verdict<th>fault<th>nmse<th>largest error</tr>")
    for n in found.diff.nodes:
        e = n.evidence
        parts.append(
            f"<tr><td>{escape(n.name)}<td class={n.verdict}>{n.verdict}<td>{escape(n.known.short)}<td>{e.nmse:.2e}"
            f"<td>{e.worst:.2e}</tr>"
        )
    parts.append("</table>")
    body = "\n".join(parts)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style><body>\n{body}\n</body></html>\n"
    )


def _headline(found: PictureDiagnosis) -> str:
    said = found.diagnosis
    if said.causes:
        return f"{said.causes[0].fault} at {said.causes[0].node}"
    return {"healthy": "healthy", "unexplained": f"{said.first_wrong} is wrong, and no known mistake gives it"}.get(
        said.verdict, said.verdict
    )


def _pictures(found: PictureDiagnosis, tower: Tower) -> list[str]:
    """Expected pixels, found pixels and their difference, of the first images of the dump."""
    mean, std = (np.array(three) for three in (tower.keys.mean, tower.keys.std))
    parts = []
    for j, pixels in list(found.found.items())[:MOST_IMAGES]:
        if j >= len(found.expected):
            continue
        drawn = data_url(side_by_side(found.expected[j], pixels, mean, std))
        parts.append(f"<h2>Pixels of image {j}: expected, found, difference</h2>")
        parts.append(f'<p><img alt="pixels of image {j}: expected, found, difference" src="{drawn}"></p>')
    return parts
