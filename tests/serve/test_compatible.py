"""Details that clients depend on: names of models, schemas, calls that were cut off, biases, headers, TLS, pings."""

from __future__ import annotations

import json
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from assay.errors import AssayError
from assay.serve.api.routes import ALIASES
from assay.serve.server import _secured
from tests.serve.conftest import Server, Start
from tests.tiny import make

ASK = [{"role": "user", "content": "hello the world"}]
CITY = {"type": "object", "properties": {"city": {"enum": ["oslo", "rome"]}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]


def chat(server: Server, **given: Any) -> dict[str, Any]:
    body = {"messages": ASK, "temperature": 0, "max_tokens": 4} | given
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def test_one_model_answers_for_every_name(server: Server, start: Start, tiny: Path) -> None:
    found = chat(server, model="gpt-4o")
    assert found["model"] == "tiny"
    assert httpx.get(f"{server.url}/v1/models/gpt-4o").status_code == 404
    for other in (start([("tiny", tiny)], config={"strict_model": True}), start([("a", tiny), ("b", tiny)])):
        refused = httpx.post(f"{other.url}/v1/chat/completions", json={"model": "gpt-4o", "messages": ASK})
        assert refused.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("alias", ALIASES)
def test_paths_of_llama_server(server: Server, alias: str) -> None:
    """Each does what the path does that it stands for, with the same body."""
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": ASK}, "/v1/responses": {"input": "a"}, "/completion": {"prompt": "a"},
        "/v1/responses/input_tokens": {"input": "a"}, "/v1/fim/completions": {"prompt": "a"},
        "/embedding": {"content": "a"}, "/v1/rerank": {"query": "a", "documents": ["b"]},
    }  # fmt: skip
    body = bodies.get(ALIASES[alias])
    found = []
    for path in (alias, ALIASES[alias]):
        fixed = body and body | {"temperature": 0, "max_tokens": 2, "n_predict": 2, "max_output_tokens": 2}
        reply = httpx.request("POST" if body else "GET", server.url + path, json=fixed, timeout=60)
        found.append((reply.status_code, sorted(reply.json()[0] if isinstance(reply.json(), list) else reply.json())))
    assert found[0] == found[1] and found[0][0] in (200, 400)
    assert found[0][0] == 200 or ALIASES[alias] == "/v1/rerank"  # the model of this server cannot rank


def test_embeddings_of_a_client_whose_address_has_no_version(server: Server) -> None:
    """With `input` the answer is OpenAI's, with `content` llama-server's."""
    asked = {"input": ["hello", "the world"], "encoding_format": "base64"}
    same = [httpx.post(server.url + path, json=asked, timeout=60).json() for path in ("/embeddings", "/v1/embeddings")]
    assert same[0] == same[1] and isinstance(same[0]["data"][1]["embedding"], str)
    rows = httpx.post(f"{server.url}/embeddings", json={"content": "hello"}, timeout=60).json()
    assert len(rows[0]["embedding"]) == 1
    refused = httpx.post(f"{server.url}/embeddings", json={})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "content")


def test_the_context_as_vllm_and_ollama_name_it(server: Server) -> None:
    (card,) = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert card["max_model_len"] == card["context_length"] == 512
    assert (card["loaded"], card["status"]) == (True, {"value": "loaded"})
    version = httpx.get(f"{server.url}/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 12)
    shown = httpx.post(f"{server.url}/api/show", json={"model": "tiny"}).json()
    assert shown["parameters"].split() == ["num_ctx", "512"] and ".Suffix" not in shown["template"]


@pytest.mark.parametrize("words", [600, 40_000], ids=["", "more characters than the context can have"])
def test_ollamas_embeddings_cut_a_text_at_the_end_of_the_context(server: Server, words: int) -> None:
    """Open WebUI sends pieces of documents with `truncate`, which is Ollama's default."""
    text = "hello the " * words
    start = httpx.post(f"{server.url}/tokenize", json={"content": text[:6000], "add_special": True}).json()["tokens"]
    ids = {"model": "tiny", "input": start[:512]}
    (want,) = httpx.post(f"{server.url}/v1/embeddings", json=ids, timeout=60).json()["data"]
    for given in ({}, {"truncate": True}):
        found = httpx.post(f"{server.url}/api/embed", json={"model": "tiny", "input": [text, "a"]} | given, timeout=60)
        assert found.json()["embeddings"][0] == want["embedding"]
    older = httpx.post(f"{server.url}/api/embeddings", json={"model": "tiny", "prompt": text}, timeout=60).json()
    assert older["embedding"] == want["embedding"]
    refused = httpx.post(f"{server.url}/api/embed", json={"model": "tiny", "input": text, "truncate": False})
    assert refused.status_code == 400 and "the prompt is too long" in refused.json()["error"]


def test_a_text_that_is_cut_keeps_its_closing_token(start: Start, tmp_path: Path) -> None:
    """A model of embeddings may read this token alone."""
    closing = {"tokenizer.ggml.add_eos_token": True}
    server = start([("closed", make(tmp_path / "closed.gguf", n_ctx=64, metadata=closing))])
    text = "hello the " * 200
    ids = httpx.post(f"{server.url}/tokenize", json={"content": text, "add_special": True}).json()["tokens"]
    assert len(ids) > 64 and ids[-1] == 2
    cut = {"model": "closed", "input": [*ids[:63], 2]}
    (want,) = httpx.post(f"{server.url}/v1/embeddings", json=cut, timeout=60).json()["data"]
    found = httpx.post(f"{server.url}/api/embed", json={"model": "closed", "input": text}, timeout=60).json()
    assert found["embeddings"] == [want["embedding"]]


def test_tokens_of_items_are_counted(server: Server) -> None:
    body = {"instructions": "be short", "input": [{"role": "user", "content": "hello"}]}
    counted = httpx.post(f"{server.url}/v1/responses/input_tokens", json=body).json()
    made = httpx.post(f"{server.url}/v1/responses", json=body | {"max_output_tokens": 1}, timeout=60).json()
    assert counted == {"object": "response.input_tokens", "input_tokens": made["usage"]["input_tokens"]}


def test_tools_that_others_run_are_left_out(server: Server) -> None:
    """An agent offers them beside its functions; the prompt is that of the functions alone."""
    function = {"type": "function", "name": "weather", "parameters": CITY}
    hosted = [{"type": "web_search"}, {"type": "custom", "name": "patch", "format": {"type": "text"}}]

    def count(*tools: dict[str, Any]) -> httpx.Response:
        return httpx.post(f"{server.url}/v1/responses/input_tokens", json={"input": "a", "tools": list(tools)})

    assert count(*hosted, function).json() == count(function).json() != count(*hosted).json()
    assert count({"type": "nothing"}, function).json() == count(function).json()
    assert "name" in count({"type": "function"}).json()["error"]["message"]


def test_models_in_anthropics_form(server: Server) -> None:
    anthropic = pytest.importorskip("anthropic", reason="the anthropic package is not installed")
    client = anthropic.Anthropic(base_url=server.url, api_key="none")
    (found,) = client.models.list()
    assert (found.type, found.id, found.display_name) == ("model", "tiny", "tiny") and found.created_at.year > 2000
    assert client.models.retrieve("tiny") == found


def test_ollamas_log_probabilities_and_dimensions(server: Server) -> None:
    def ask(route: str, **body: Any) -> dict[str, Any]:
        given = {"model": "tiny", "stream": False, "options": {"num_predict": 4, "temperature": 0}} | body
        found: dict[str, Any] = httpx.post(f"{server.url}/api/{route}", json=given, timeout=60).json()
        return found

    chosen = chat(server, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    scored = {"logprobs": True, "top_logprobs": 2}
    assert ask("chat", messages=ASK, **scored)["logprobs"] == chosen and len(chosen) == 4
    raw = ask("generate", prompt="hello", raw=True, logprobs=True)["logprobs"]
    assert len(raw) == 4 and all(row["logprob"] <= 0 and not row["top_logprobs"] for row in raw)
    assert "logprobs" not in ask("chat", messages=ASK)
    assert [len(row) for row in ask("embed", input=["a", "b"], dimensions=8)["embeddings"]] == [8, 8]


@pytest.mark.parametrize("seed", range(3))
def test_objects_have_no_other_keys(server: Server, seed: int) -> None:
    hot = {"temperature": 2, "seed": seed, "max_tokens": 100}
    (call,) = chat(server, tools=TOOLS, tool_choice="required", **hot)["choices"][0]["message"]["tool_calls"]
    assert set(json.loads(call["function"]["arguments"])) == {"city"}
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    assert set(json.loads(chat(server, response_format=form, **hot)["choices"][0]["message"]["content"])) == {"city"}


def test_a_call_that_was_cut_off_is_no_content(server: Server) -> None:
    for n in (4, 12, 24):
        (choice,) = chat(server, tools=TOOLS, tool_choice="required", max_tokens=n)["choices"]
        assert choice["finish_reason"] == "length"
        assert not choice["message"]["content"] and "tool_calls" not in choice["message"]


def test_a_streamed_call_that_was_cut_off_has_no_marks(server: Server) -> None:
    for n in (4, 12, 24):
        body = {"messages": ASK, "tools": TOOLS, "tool_choice": "required", "max_tokens": n, "stream": True}
        text = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).text
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        assert events[-1]["choices"][0]["finish_reason"] == "length"
        assert not any(event["choices"][0]["delta"].get("content") for event in events)


def test_a_full_context_is_shifted(start: Start, tiny: Path) -> None:
    """The tokens after a shift are those of a request with the tokens that stayed."""
    given = {"prompt": [1, 5, 9, 12], "n_predict": 90, "ignore_eos": True, "temperature": 0, "return_tokens": True}
    server = start([("tiny", tiny)], options={"ctx_size": 64, "context_shift": True, "keep": 2, "threads": 1})

    def ask(**more: Any) -> dict[str, Any]:
        found: dict[str, Any] = httpx.post(f"{server.url}/completion", json=given | more, timeout=60).json()
        return found

    found = ask()
    assert found["truncated"] and found["tokens_predicted"] == 90 and found["stop_type"] == "limit"
    first = [1, 5, 9, 12, *found["tokens"][:61]]
    bos = httpx.post(f"{server.url}/tokenize", json={"content": "", "add_special": True}).json()["tokens"]
    keep = 2 + len(bos)
    stayed = [*first[:keep], *first[keep + (64 - keep) // 2 :]]
    after = ask(prompt=stayed, n_predict=20)
    assert not after["truncated"] and after["tokens"] == found["tokens"][61:81]
    other = ask(n_keep=-1)["tokens"]
    assert other != found["tokens"]
    options = {"num_predict": 90, "num_keep": -1, "temperature": 0}
    body = {"model": "tiny", "prompt": "hello", "raw": True, "options": options, "stream": False}
    assert httpx.post(f"{server.url}/api/generate", json=body, timeout=60).json()["eval_count"] <= 90


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [
            {"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:,"}}]}]}),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]}),
        ("/v1/messages", {"max_tokens": 4, "messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image", "source": {}}]}]}]}),
        ("/api/chat", {"model": "tiny", "messages": [{"role": "user", "images": ["aGk="]}]}),
        ("/api/generate", {"model": "tiny", "prompt": "x", "images": ["aGk="]}),
    ],
)  # fmt: skip
def test_images_are_refused_by_name(server: Server, path: str, body: dict[str, Any]) -> None:
    refused = httpx.post(server.url + path, json=body)
    assert refused.status_code == 400 and "images are not supported by this model" in refused.text


def test_a_bias_by_text(server: Server) -> None:
    def ids(bias: Any) -> list[int]:
        body = {"prompt": "hello", "max_tokens": 4, "temperature": 0, "ignore_eos": True, "logprobs": 0}
        reply = httpx.post(f"{server.url}/v1/completions", json=body | {"logit_bias": bias}, timeout=60)
        assert reply.status_code == 200, reply.text
        found: list[int] = reply.json()["choices"][0]["logprobs"]["ids"]
        return found

    (token,) = httpx.post(f"{server.url}/tokenize", json={"content": "a"}).json()["tokens"]
    assert ids({"a": 100}) == ids([["a", 100]]) == ids([[token, 100]]) == [token] * 4
    first = ids({})[0]
    assert first not in ids([[first, False]])
    wrong = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "logit_bias": [["a", "b"]]})
    many = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "logit_bias": {
        f"{i:064d}": 1 for i in range(1024)}})  # fmt: skip
    assert (wrong.status_code, many.status_code) == (400, 400) and "at most 1024" in many.text


def test_line_breaks_and_the_stop_string_are_reported(server: Server) -> None:
    body = {"prompt": "hello", "n_predict": 3, "ignore_eos": True}
    # Byte 10 is token 13: SentencePiece's bytes follow the three control tokens.
    lines, none = (
        httpx.post(f"{server.url}/completion", json=body | {"logit_bias": {str(token): 100}}, timeout=60).json()
        for token in (13, 270)
    )
    assert (lines["content"], lines["has_new_line"], none["has_new_line"]) == ("\n\n\n", True, False)
    stop = {"logit_bias": {"270": 100}, "stop": ["never", none["content"][1:2]]}
    assert (
        httpx.post(f"{server.url}/completion", json=body | stop, timeout=60).json()["stopping_word"] == stop["stop"][1]
    )


def test_a_response_names_its_request(server: Server) -> None:
    given = httpx.get(f"{server.url}/health", headers={"X-Request-Id": "client-7"})
    assert given.headers["x-request-id"] == "client-7"
    own = [httpx.get(f"{server.url}/{path}", headers={"X-Request-Id": "a b"}) for path in ("health", "none")]
    assert len({reply.headers["x-request-id"] for reply in own} | {"a b"}) == 3


def test_a_silent_stream_is_kept_alive(start: Start, tiny: Path) -> None:
    server = start([("tiny", tiny)], limits={"ping_s": 0.0005})
    body = {"messages": ASK, "max_tokens": 64, "temperature": 0, "stream": True, "ignore_eos": True}
    text = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).text
    assert ": ping\n\n" in text and text.endswith("data: [DONE]\n\n")
    events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
    said = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert said == chat(server, max_tokens=64, ignore_eos=True)["choices"][0]["message"]["content"]
    named = {"messages": ASK, "max_tokens": 64, "stream": True}
    assert "event: ping\n" in httpx.post(f"{server.url}/v1/messages", json=named, timeout=60).text
    lines = httpx.post(f"{server.url}/api/chat", json={"model": "tiny", "messages": ASK}, timeout=60).text
    assert all(json.loads(line) for line in lines.splitlines())


# --- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that is its own authority, and its key."""
    pytest.importorskip("cryptography", reason="cryptography is not installed")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "assay test")])
    import ipaddress

    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("tls")
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "cert.pem", folder / "key.pem"


def test_tls(start: Start, tiny: Path, certificate: tuple[Path, Path]) -> None:
    server = start([("tiny", tiny)], config={"tls": [str(path) for path in certificate]})
    assert server.url.startswith("https://")
    trusted = ssl.create_default_context(cafile=str(certificate[0]))
    body = {"messages": ASK, "max_tokens": 4, "stream": True}
    with httpx.Client(base_url=server.url, verify=trusted, timeout=60) as client:
        assert client.post("/v1/chat/completions", json=body).text.endswith("data: [DONE]\n\n")
    with pytest.raises(httpx.TransportError):
        httpx.get(server.url.replace("https", "http") + "/health")


def test_wrong_files_for_tls(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    with pytest.raises(AssayError, match="no such file"):
        _secured((tmp_path / "missing.pem", certificate[1]))
    with pytest.raises(AssayError, match="cannot be used with"):
        _secured((certificate[0], tmp_path / "empty.pem"))
