"""Every example of docs/reference/python.md runs, in order, in a folder with a tiny model."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import assay
from tests import tiny

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "python.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llguidance")
    tiny.make(tmp_path / "model.gguf")
    monkeypatch.chdir(tmp_path)
    load = assay.load
    # The first example has the default model's name; the tiny one answers for it.
    monkeypatch.setattr(assay, "load", lambda name, *a, **k: load("model.gguf" if name == "smollm2" else name, *a, **k))
    seen: dict[str, Any] = {}
    for number, example in enumerate(EXAMPLES):
        tree = ast.parse(example)
        for node in tree.body:
            code = compile(ast.Module([node], []), f"example {number}, line {node.lineno}", "exec")
            if isinstance(node, ast.Expr):  # as a prompt would show it
                shown = repr(eval(compile(ast.Expression(node.value), code.co_filename, "eval"), seen))
                assert shown
            else:
                exec(code, seen)
    assert len(EXAMPLES) >= 20
    assert "wrong: ffn_out-0" in capsys.readouterr().out


def test_every_name_has_its_place_on_the_page() -> None:
    functions = ("load", "diff", "diagnose", "check", "load_dump", "SamplerParams", "AssayError")
    methods = ("generate", "stream", "chat", "batch", "logits", "embed", "tokenize", "detokenize", "trace", "close")
    for name in functions:
        assert f"assay.{name}" in PAGE
    for name in methods:
        assert f"model.{name}(" in PAGE
        assert getattr(assay.LanguageModel, name).__doc__


def test_every_setting_is_on_the_page() -> None:
    from dataclasses import fields

    from assay.library.settings import ALIASES, LENGTHS

    for name in (*ALIASES, *LENGTHS, *(f.name for f in fields(assay.SamplerParams))):
        assert f"`{name}" in PAGE or f" {name}" in PAGE, name
