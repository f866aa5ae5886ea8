"""The pages agree with the code: generated ones are fresh, and every command they show is one assay takes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from assay import cli
from assay.errors import AssayError

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS]
SOURCES = ("src", "native", "bench", "fuzz", "tests", "examples", "docs")
_COMMAND = re.compile(r"^(?:\$ )?(assay .*)$", re.MULTILINE)


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="argparse words its help differently in each Python")
def test_generated_pages_are_fresh() -> None:
    done = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + "run `make docs`"


def commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for block in re.findall(r"```[a-z]*\n(.*?)```", page.read_text(), re.DOTALL):
            if not block.startswith("usage:"):
                found += [(page.name, m[1]) for m in _COMMAND.finditer(block.replace("\\\n", " "))]
    return found


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_in_pages_parse(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    words = words[: next((i for i, w in enumerate(words) if w in ("|", ">", "2>", "&&", "&")), len(words))]
    if words[0] in ("--help", "--version", "VERB"):
        return
    try:
        cli.parse(words[0], words[1:])
    except (AssayError, ModuleNotFoundError) as error:
        pytest.fail(f"{page} shows a command that assay refuses: {line}: {error}")


def test_links_between_pages_hold() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_in_the_menu() -> None:
    menu = set(re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert menu == {page.relative_to(ROOT / "docs").as_posix() for page in DOCS}


def test_paths_of_pages_in_code_exist() -> None:
    """Help texts, errors and comments name pages by their path; a page that moves takes them along."""
    files = [ROOT / "Makefile", *(path for folder in SOURCES for path in sorted((ROOT / folder).rglob("*")))]
    endings = ("", ".py", ".pyi", ".h", ".cpp", ".cu", ".toml", ".yaml", ".html")
    for file in (f for f in files if f.is_file() and f.suffix in endings and "__pycache__" not in f.parts):
        for path in re.findall(r"(?<![\w/.-])docs/[\w/-]+\.md", file.read_text("utf-8", "replace")):
            assert (ROOT / path).exists(), f"{file.relative_to(ROOT)} names {path}"


def test_files_named_in_pages_exist() -> None:
    """Pages that guide a reader through the tree name modules by a path below the repository or below a package."""
    below = ("", "src/assay", "src/assay/engines", "src/assay/engines/cuda", "src/assay/engines/plan")
    below += ("src/assay/verify", "src/assay/verify/faults", "native/cuda", "native/kernels")
    guides = [page for page in DOCS if page.stem in ("design", "a-tokens-life") or page.stem.startswith("add-a")]
    assert len(guides) == 7
    for page in guides:
        for path in re.findall(r"`([\w./*-]+\.(?:py|h|cu|toml))`", page.read_text()):
            assert any(list((ROOT / folder).glob(path)) for folder in below), f"{page.name} names {path}"
