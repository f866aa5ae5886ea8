"""Many models: offered and opened on demand, a few in memory, presets, keep_alive, and the routes that manage them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from assay.errors import AssayError
from assay.runtime import presets
from assay.runtime.opening import OpenOptions
from assay.serve.api_errors import ApiError
from assay.serve.limits import ServerLimits
from assay.serve.pool.meter import Metrics
from assay.serve.pool.models import ModelPool, Offer, ServedModel
from tests import forked
from tests.tiny import make

PRESETS = """
[pirate]
model = "{model}"
system = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
temperature = 0
top_k = 7
max_tokens = 5
stop = ["never said"]
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of assay in which `assay list` shows three models of an Ollama store."""
    folder = tmp_path_factory.mktemp("home")
    for i, name in enumerate(("one", "two", "three")):
        blob = make(folder / f"{name}.gguf", n_ctx=256, seed=i)
        digest = f"{i:064x}"
        blobs, manifests = folder / "blobs", folder / "manifests" / "registry.ollama.ai" / "library" / name
        blobs.mkdir(exist_ok=True)
        manifests.mkdir(parents=True)
        size = blob.stat().st_size
        blob.rename(blobs / f"sha256-{digest}")
        layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": size}
        (manifests / "latest").write_text(json.dumps({"layers": [layer]}))
    return folder


@pytest.fixture(scope="module")
def url(home: Path) -> Iterator[str]:
    file = home / "presets-given.toml"
    file.write_text(PRESETS.format(model="ollama:one"))
    environment = os.environ | {"ASSAY_HOME": str(home / "assay"), "OLLAMA_MODELS": str(home), "HF_HOME": str(home)}
    command = [sys.executable, "-m", "assay", "serve", "--port", "0", "--json", "--models-max", "2", "--allow-manage"]
    process = forked.Popen(
        [*command, "--presets", str(file), "--threads", "1", "--engine", "cpu"],
        stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    assert process.stdout
    yield json.loads(process.stdout.readline())["url"]
    process.terminate()
    process.wait(30)


def chat(url: str, model: str, **fields: Any) -> Any:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "stream": False, **fields}
    body["options"] = {"num_predict": 2, "temperature": 0}
    return httpx.post(f"{url}/api/chat", json=body, timeout=30).json()


def loaded(url: str) -> set[str]:
    rows = httpx.get(f"{url}/models").json()["data"]
    return {row["id"] for row in rows if row["status"]["value"] == "loaded"}


def test_what_is_on_the_machine_is_offered_and_loaded_when_asked_for(url: str) -> None:
    names = {card["id"] for card in httpx.get(f"{url}/v1/models").json()["data"]}
    assert names >= {"ollama:one:latest", "ollama:two:latest", "ollama:three:latest", "pirate"}
    assert httpx.get(f"{url}/ready").status_code == 200
    for name in ("ollama:one:latest", "ollama:two:latest", "ollama:three:latest"):
        assert chat(url, name)["done_reason"] == "length"
        assert name in loaded(url)
    assert len(loaded(url) - {"pirate"}) == 2
    assert httpx.post(f"{url}/v1/completions", json={"model": "nothing", "prompt": "a"}).status_code == 404


def test_a_preset_has_a_system_message_and_sampler_and_shares_the_engine(url: str) -> None:
    plain, pirate = chat(url, "ollama:one:latest"), chat(url, "pirate")
    assert pirate["prompt_eval_count"] > plain["prompt_eval_count"] + 20
    assert {"pirate", "ollama:one:latest"} <= loaded(url)
    said = httpx.post(f"{url}/completion", json={"model": "pirate", "prompt": "a", "n_predict": 1}).json()
    assert said["generation_settings"]["top_k"] == 7
    assert said["generation_settings"]["temperature"] == 0
    free = {"model": "pirate", "prompt": "a", "ignore_eos": True}
    text = httpx.post(f"{url}/completion", json=free).json()
    assert text["tokens_predicted"] == 5
    assert httpx.post(f"{url}/completion", json=free | {"n_predict": 9}).json()["tokens_predicted"] == 9
    running = httpx.get(f"{url}/v1/replicas").json()["data"]
    assert sum(row["model"] in ("pirate", "ollama:one:latest") for row in running) == 1


def test_models_are_loaded_and_unloaded_by_request(url: str) -> None:
    name = "ollama:two:latest"
    with httpx.stream("POST", f"{url}/models/load", json={"model": name, "stream": True}, timeout=30) as reply:
        events = [json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: ")]
    assert events[-1] == {"model": name, "status": "loaded"}
    assert {event["status"] for event in events[:-1]} == {"loading"}
    assert httpx.post(f"{url}/models/unload", json={"model": name}).json() == {"success": True}
    assert name not in loaded(url)
    assert chat(url, name, messages=[])["done_reason"] == "load"
    shown = next(m for m in httpx.get(f"{url}/api/ps").json()["models"] if m["name"] == name)
    assert len(shown["digest"]) == 64
    assert shown["expires_at"].startswith("9999")
    assert chat(url, name, messages=[], keep_alive=0)["done_reason"] == "unload"
    assert name not in loaded(url)
    assert "keep_alive" in chat(url, name, keep_alive="5 weeks")["error"]


def test_presets_are_made_copied_and_deleted(url: str, home: Path) -> None:
    def post(route: str, **body: Any) -> httpx.Response:
        return httpx.post(f"{url}/api/{route}", json=body, timeout=30)

    assert post("create", model="short", **{"from": "nothing"}).status_code == 404
    made = post(
        "create", model="short", system="b" * 40, **{"from": "one"}, parameters={"top_p": 0.5, "num_predict": 3}
    )
    assert json.loads(made.text.splitlines()[-1]) == {"status": "success"}
    assert post("copy", source="short", destination="again").status_code == 200
    cards = {card["name"]: card for card in httpx.get(f"{url}/api/tags").json()["models"]}
    assert cards["again"]["size"] == cards["ollama:one:latest"]["size"] > 0
    assert chat(url, "again")["prompt_eval_count"] == chat(url, "short")["prompt_eval_count"]
    asked = {"model": "again", "prompt": "a", "raw": True, "stream": False}
    assert post("generate", **asked).json()["eval_count"] <= 3
    kept = (home / "assay" / "presets.toml").read_text()
    assert '["short"]' in kept and "top_p = 0.5" in kept
    assert post("copy", source="short", destination="pirate").status_code == 400
    assert post("create", model="bad", **{"from": "short"}, parameters={"rm": 1}).status_code == 400
    assert post("embeddings", model="again", prompt="text").json()["embedding"]
    for name in ("short", "again"):
        assert httpx.request("DELETE", f"{url}/api/delete", json={"model": name}).status_code == 200
    assert chat(url, "short")["error"]
    refused = httpx.request("DELETE", f"{url}/api/delete", json={"model": "ollama:one:latest"})
    assert "ollama rm" in refused.json()["error"]
    assert httpx.request("DELETE", f"{url}/api/delete", json={"model": "/etc/passwd"}).status_code == 404
    assert post("pull", model="/etc/passwd").status_code == 404


def test_ollamas_client_manages_models(url: str) -> None:
    """The `ollama` package unchanged: create with its progress, copy, list, use, delete; a pull that fails."""
    client = pytest.importorskip("ollama", reason="the ollama package is not installed").Client(host=url)
    events = [event.status for event in client.create(model="mine", from_="one", system="c" * 40, stream=True)]
    assert events[-1] == "success"
    assert client.create(model="mine", from_="one", system="d" * 40).status == "success"
    assert client.copy(source="mine", destination="yours").status == "success"
    assert {"mine", "yours"} <= {model.model for model in client.list().models}
    assert len({model.digest for model in client.list().models if model.model in ("mine", "yours")}) == 1
    made = client.generate(model="yours", prompt="a", options={"num_predict": 2}, keep_alive="5m")
    assert (made.done_reason, made.eval_count) == ("length", 2)
    assert "yours" in {model.model for model in client.ps().models}
    for name in ("mine", "yours"):
        assert client.delete(model=name).status == "success"
    for fails in (lambda: client.delete(model="mine"), lambda: list(client.pull(model="/etc/passwd", stream=True))):
        with pytest.raises(Exception, match=r"does not exist|no such|not") as error:
            fails()
        assert type(error.value).__name__ == "ResponseError"


def test_nobody_manages_models_without_a_key(start: Any, tiny: Path) -> None:
    server = start([("tiny", tiny)])
    for route, body in (("pull", {"model": "smollm2"}), ("create", {"model": "a", "from": "tiny"}),
                        ("copy", {"source": "tiny", "destination": "b"})):  # fmt: skip
        assert httpx.post(f"{server.url}/api/{route}", json=body).status_code == 403
    assert httpx.request("DELETE", f"{server.url}/api/delete", json={"model": "tiny"}).status_code == 403


# --- the pool itself


def pool_of(path: Path, n: int, **options: Any) -> ModelPool:
    limits = ServerLimits(load_s=options.pop("load_s", 20.0))

    def open_offer(offer: Offer) -> ServedModel:
        return ServedModel(offer.name, path, OpenOptions(engine="cpu", threads=1, cache_size=256), limits)

    offers = [Offer(f"m{i}", path) for i in range(n)]
    return ModelPool([], limits, Metrics(CollectorRegistry()), 1 << 34, offers=offers, open_offer=open_offer, **options)


def test_a_model_in_constant_use_makes_room_for_one_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.serve.pool.models._RESIDENT_S", 0.05)
    path = make(tmp_path / "tiny.gguf")

    async def run() -> None:
        pool = pool_of(path, 3, most=1)
        for name in ("m0", "m1", "m2"):
            await pool.open(name)
        served = dict.fromkeys(pool.entries, 0)

        async def client(name: str) -> None:
            while min(served.values()) < 2:
                async with pool.use(pool.find(name)):
                    served[name] += 1
                    assert sum(e.worker is not None for e in pool.entries.values()) <= 1
                    await asyncio.sleep(0.02)

        await asyncio.wait_for(asyncio.gather(*(client(f"m{i % 3}") for i in range(9))), 20)
        await pool.close()

    asyncio.run(run())


def test_an_unused_model_is_unloaded_after_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.serve.pool.models._IDLE_CHECK_S", 0.01)
    path = make(tmp_path / "tiny.gguf")

    async def run() -> None:
        pool = pool_of(path, 2, idle_s=0.05)
        task = asyncio.ensure_future(pool.unload_idle())
        for name in ("m0", "m1"):
            await pool.open(name)
            async with pool.use(pool.find(name)):
                pool.find(name).keep_s = float("inf") if name == "m1" else None
        while pool.find("m0").worker:
            await asyncio.sleep(0.01)
        assert pool.find("m1").worker
        task.cancel()
        await pool.close()

    asyncio.run(run())


def test_a_file_that_cannot_be_opened_is_an_error_of_the_request(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")

    async def run() -> None:
        with pytest.raises(ApiError, match=r"bad\.gguf"):
            await pool_of(tmp_path / "bad.gguf", 1).open("m0")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "said"),
    [("[a", "is not TOML"), ("[a]\n", "names no model"), ('["a b"]\nmodel="x"', "not a name"),
     ('[a]\nmodel="x"\ncolour=1', "colour = 1 is not a setting"), ('[a]\nmodel="x"\ntop_p=7', "top_p"),
     ('[a]\nmodel="x"\nlora="x"', "lora"), ('[a]\nmodel="x"\nmax_tokens=0', "max_tokens"),
     ('[a]\nmodel="x"\nstop=[""]', "stop")],
)  # fmt: skip
def test_presets_that_are_wrong_are_refused_with_the_place(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(AssayError, match=said):
        presets.read(tmp_path / "p.toml")


def test_stored_presets_are_read_as_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    made = [
        presets.Preset("a:b/c", 'm"\\', "say\n\x7f ü", "d", ("x=1",), 4, {"temp": 0.5, "top_k": 3}, ("\n", "x"), 7),
        presets.Preset("n", "m"),
    ]
    presets.store(made)
    assert presets.stored() == made
