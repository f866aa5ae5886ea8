"""Writes the pages of docs/reference that are made from code; `--check` lists those that are out of date and exits 1.

python docs/generate.py
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.graph import Graph

HERE = Path(__file__).parent
NOTE = "<!-- Made by docs/generate.py from the code. Do not edit. -->\n\n"


def _node_rows(graph: Graph) -> Iterator[str]:
    """One line for each node; of later layers, only the nodes that are computed differently."""
    from assay.graph import split

    seen: set[str] = set()
    for node in graph:
        text = str(node).split(" = ", 1)[1].replace("|", "\\|")
        shape = " × ".join(map(str, graph.shapes[node.name]))
        # Two nodes of different layers count as equal if they differ only in layer numbers or column ranges.
        plain = re.sub(rf"(-|_l|blk\.){split(node.name)[1]}\b", r"\1N", f"{node.name} {text} {shape}")
        plain = re.sub(r"(?<=[( ])(embd|inp_scaled|inpL|inp_norm-N)(?=[,;)])", "l_out-", plain)
        plain = re.sub(r"(?<=-)\d+\b|(start|stop)=\d+", "", plain)
        if plain not in seen:
            yield f"| `{node.name}` | `{text}` | {shape} |"
        seen.add(plain)


def names_page() -> str:
    """Node names of every builder, and the operations."""
    from assay.graph import OPS
    from assay.models.catalogue import ARCHITECTURES, VARIANTS, example
    from assay.verify.dumps.naming import foreign_names

    out = [
        "# Nodes and operations\n",
        "Nodes carry llama.cpp's names. One name denotes one value: where llama.cpp uses a name several times, the",
        "stages are `_proj` (the product), `_biased`, `_normed`, then the plain name (`Qcur` and `Kcur` after RoPE).",
        "`-N` is the layer. `T` is the number of tokens of the step, `S` the number of keys. A small example stands",
        "for each architecture; of its later layers, only the nodes that are computed differently are listed.\n",
    ]
    seen: dict[tuple[str, ...], str] = {}
    for title, row in {**ARCHITECTURES, **VARIANTS}.items():
        rows = tuple(_node_rows(example(row)[1]))
        same = seen.setdefault(rows, title)
        out += [f"## {title}\n", f"{row.models}.\n"]
        out += ["| node | operation | shape |", "|---|---|---|", *rows] if same == title else [f"As `{same}`."]
        out.append("")
    out += ["## Operations\n", "| operation | inputs | weights | attributes | definition |", "|---|---|---|---|---|"]
    for op in OPS.values():
        attrs = ", ".join(f"`{k}`" if repr(v) == "required" else f"`{k}={v}`" for k, v in op.attrs.items())
        formula = op.formula.replace("|", "\\|")
        out.append(f"| `{op.name}` | {', '.join(op.inputs)} | {', '.join(op.weights)} | {attrs} | {formula} |")
    out += ["", *foreign_names.page()]
    return "\n".join(out) + "\n"


def cli_page() -> str:
    """The help text of every verb."""
    from assay import cli

    out = [
        "# Command line\n",
        "Exit codes: 0 success, 1 a difference was found, 2 bad input. `--json` prints one object.\n",
    ]
    for verb in ("", *cli.verbs()):
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            cli.main([verb, "--help"] if verb else ["--help"])
        out += [f"## assay {verb}".rstrip() + "\n", "```", text.getvalue().rstrip(), "```\n"]
    return "\n".join(out)


def faults_page() -> str:
    """The catalogue of faults."""
    import faults_page as made

    return made.page()


def dump_page() -> str:
    """The dump formats, with the pattern language of log lines."""
    import dump_page as made

    return made.dump_page()


def models_page() -> str:
    """The architectures, and how exactly each was checked."""
    import models_page as made

    return made.page()


PAGES: dict[str, Callable[[], str]] = {
    "reference/names.md": names_page,
    "reference/models.md": models_page,
    "reference/cli.md": cli_page,
    "reference/faults.md": faults_page,
    "reference/dump-format.md": dump_page,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is out of date")
    check = parser.parse_args().check
    import os

    os.environ["COLUMNS"] = "100"  # argparse wraps help to the terminal
    stale = []
    for name, make in PAGES.items():
        text, path = NOTE + make(), HERE / name
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if not check:
                path.write_text(text)
    print(f"{'out of date' if check else 'written'}: {', '.join(stale) or 'none'}", file=sys.stderr)
    return 1 if check and stale else 0


if __name__ == "__main__":
    assert importlib.util.find_spec("assay"), "install assay first: pip install -e ."
    sys.exit(main())
