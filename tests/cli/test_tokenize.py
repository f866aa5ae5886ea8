"""`assay tokenize`: ids out, text out, and a verdict on another program's ids."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.cli import main
from tests.cli.conftest import Assay

NOTE = "[1, 29966, 29989, 1792, 29989, 29958, 13, 29896, 29966, 29989, 465, 22137, 29989, 29958]"


@pytest.fixture(scope="session")
def vocab(shared_dir: Path) -> str:
    return str(shared_dir / "data" / "vocab" / "ggml-vocab-llama-spm.gguf")


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["tokenize", *args])
    done = capsys.readouterr()
    return code, done.out, done.err


def test_ids_and_pieces(vocab: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, vocab, "Hello 🦙")
    assert code == 0
    assert out.splitlines()[:4] == ["    1  '<s>'", "15043  ' Hello'", "29871  ' '", r"  243  b'\xf0'"]
    code, out, _ = run(capsys, vocab, "Hello world", "--json")
    assert json.loads(out) == {"ids": [1, 15043, 3186], "pieces": ["<s>", " Hello", " world"]}
    assert json.loads(run(capsys, vocab, "Hello", "--json", "--no-bos")[1])["ids"] == [15043]
    assert 2 in json.loads(run(capsys, vocab, "a</s>", "--json")[1])["ids"]
    assert 2 not in json.loads(run(capsys, vocab, "a</s>", "--json", "--no-special")[1])["ids"]


def test_ids_to_text(vocab: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, vocab, "--ids", "1, 15043 3186")[:2] == (0, "<s> Hello world\n")
    found = json.loads(run(capsys, vocab, "--ids", "[15043]", "--json")[1])
    assert found == {"ids": [15043], "pieces": [" Hello"], "text": " Hello"}


def test_stdin_byte_for_byte(assay: Assay, vocab: str) -> None:
    done = assay("tokenize", vocab, "-", "--json", "--no-bos", stdin=b"a\r\n\x80\x00b \n")
    assert done.returncode == 0
    # " a", CR, LF, 0x80, NUL, "b", " ", LF: nothing is translated, stripped or replaced
    assert json.loads(done.stdout)["ids"] == [263, 30004, 13, 131, 3, 29890, 29871, 13]


def test_the_note(vocab: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, vocab, "1", "--chat", "--template", "zephyr", "--check", NOTE)
    assert code == 1
    assert "space prefix" in out and "missing: 2 '</s>'" in out and out.count("missing: a newline") == 2
    code, out, _ = run(capsys, vocab, "1", "--chat", "--template", "zephyr", "--check", NOTE, "--json")
    found = json.loads(out)
    assert code == 1 and found["same"] is False
    assert [f["fault"] for f in found["findings"]][:2] == ["spm-space-prefix", "tmpl-wrong-family"]


def test_check_from_a_file_and_equal(vocab: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = tmp_path / "ids.txt"
    ids.write_text("[1, 15043,\n 3186]\n")
    code, out, _ = run(capsys, vocab, "Hello world", "--check", str(ids))
    assert (code, out) == (0, "same: all 3 ids agree\n")
    assert json.loads(run(capsys, vocab, "Hello world", "--check", str(ids), "--json")[1])["findings"] == []


def test_system_message_and_template_file(vocab: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.jinja"
    own.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    arguments = (vocab, "hi", "--chat", "--system", "be", "--template", str(own), "--json", "--no-bos")
    assert "".join(json.loads(run(capsys, *arguments)[1])["pieces"]) == " system: be\nuser: hi\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{vocab}",), "no text after the model"),
        ((), "no text given"),
        (("{vocab}", "a", "b"), "one argument too many"),
        (("{vocab}", "a", "--chat"), "no chat template"),
        (("{vocab}", "a", "--chat", "--template", "nonsense"), "no such template"),
        (("{vocab}", "a", "--template", "chatml"), "need --chat"),
        (("{vocab}", "a", "--check", "abc"), "neither token ids"),
        (("{vocab}", "--ids", "1,x"), "expected token ids"),
        (("{vocab}", "--ids", "1,99999"), "outside the vocabulary"),
        (("{vocab}", "--ids", "1", "--check", "1"), "leave out --check and --chat"),
        (("{vocab}", "a\udcff"), "not valid UTF-8"),
        (("{vocab}/nowhere.gguf", "a"), "nowhere.gguf"),
    ],
)
def test_user_faults(vocab: str, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *(a.format(vocab=vocab) for a in arguments))
    assert code == 2 and out == "" and words in err and err.count("\n") == 1


def test_argument_that_is_not_utf8(assay: Assay, vocab: str) -> None:
    done = assay("tokenize", vocab, b"\xff\xfe")
    assert done.returncode == 2 and "not valid UTF-8" in done.stderr and done.stderr.count("\n") == 1


def test_template_arguments(vocab: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = tmp_path / "t.jinja"
    source.write_text("{{ messages[0].content }}{{ '!' if loud }}{{ word }}{{ [n] if n is number }}")
    chat = (vocab, "a", "--chat", "--template", str(source), "--json")

    def text(*args: str) -> str:
        return "".join(json.loads(run(capsys, *chat, *args)[1])["pieces"])

    assert text() == "<s> a"
    assert text("--template-arg", "loud=true", "--template-arg", "word=b c", "--template-arg", "n=2") == "<s> a!b c[2]"
    assert text("--chat-template-kwargs", '{"loud": true, "word": "=x"}', "--template-arg", "loud=false") == "<s> a=x"
    for wrong in ("loud", "1=2", "{1}", "=x"):
        code, _, err = run(capsys, *chat, "--template-arg", wrong)
        assert code == 2 and "--template-arg" in err
    code, _, err = run(capsys, *chat, "--template-arg", "messages=1")
    assert code == 2 and "messages: cannot be set" in err
    code, _, err = run(capsys, vocab, "a", "--template-arg", "loud=true")
    assert code == 2 and "need --chat" in err
