"""What is installed, and from what: the version, hints for optional packages, the source archive, the workflows."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from assay.system import extras
from assay.version import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_has_one_source() -> None:
    assert "version" in PROJECT["project"]["dynamic"]
    assert metadata.version("assay") == __version__
    for module in ("assay", "assay.cli"):
        done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True)
        assert done.stdout == f"assay {__version__}\n"
    assert f"## {__version__.partition('.dev')[0]}" in (ROOT / "CHANGELOG.md").read_text()


def plain(requirements: list[str]) -> list[tuple[str, list[str]]]:
    """Packages and bounds, however an installer writes them: it sorts bounds and adds markers."""
    found = [re.match(r"([\w.\[\]-]+)\s*([^;]*)", line) for line in requirements]
    return sorted((row[1], sorted(row[2].replace(" ", "").split(","))) for row in found if row)


@pytest.mark.parametrize("extra", PROJECT["project"]["optional-dependencies"])
def test_hints_name_the_packages_of_an_extra(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = PROJECT["project"]["optional-dependencies"][extra]
    installed = metadata.metadata("assay").get_all("Provides-Extra") or ()
    if older := PROJECT["project"]["optional-dependencies"].keys() - installed:
        pytest.skip(f"the installation is older than the extra {', '.join(sorted(older))}; install again")
    assert plain(extras.requirements(extra)) == plain(wanted)

    def nowhere(_: str) -> list[str]:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "requires", nowhere)  # a checkout that was never installed
    assert extras.requirements(extra) == wanted
    assert extras.install(extra).startswith("pip install ")
    assert extras.install("zork") == "pip install 'assay[zork]'"


def test_what_the_server_needs_is_no_extra() -> None:
    names = {re.split(r"[<>=]", item)[0] for item in PROJECT["project"]["dependencies"]}
    assert {"starlette", "uvicorn", "pydantic", "prometheus-client", "llguidance"} <= names


def test_the_source_archive_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = pytest.importorskip("scikit_build_core.build", reason="scikit-build-core is not installed")
    monkeypatch.chdir(ROOT)
    name = build.build_sdist(str(tmp_path))
    assert name == f"assay-{__version__}.tar.gz"
    with tarfile.open(tmp_path / name) as archive:
        names = {member.partition("/")[2] for member in archive.getnames()}
    needed = {
        "CMakeLists.txt",
        "pyproject.toml",
        "LICENSE",
        "README.md",
        "native/bindings.cpp",
        "src/assay/__init__.py",
    }
    assert needed <= names
    assert "src/assay/serve/page/index.html" in names
    assert not [n for n in names if n.endswith((".so", ".pyc")) or n.startswith((".venv", "build/"))]


def test_the_workflows_name_what_is_there() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            used = [step["run"] for step in job["steps"] if step.get("run", "").startswith("make ")]
            assert {line.split()[1] for line in used} <= targets
    wheels = PROJECT["tool"]["cibuildwheel"]
    for path in re.findall(r"{project}/(\S+)", wheels["test-command"]):
        assert (ROOT / path).exists(), path
