"""Printed text: the five notes that this instrument was made for, the pattern language, and what they contradict."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.dumps.contradictions import contradictions
from assay.verify.dumps.load import load_dump, read_dump
from assay.verify.dumps.observation import Dump
from assay.verify.dumps.print_rounding import half_unit, half_units
from assay.verify.dumps.printed.lexer import lex, number
from assay.verify.dumps.printed.line_prefixes import without_prefix
from assay.verify.dumps.printed.log_reader import read_log
from assay.verify.dumps.printed.patterns import Pattern
from assay.verify.judge.verdict import judge
from tests.verify.conftest import TOKENS

LOGS = Path(__file__).parents[2] / "data" / "logs"


def seen(dump: Dump) -> dict[tuple[str, str, int | None, str], object]:
    return {(o.name, o.side, o.row, o.kind): o.data for o in dump.observations}


def test_note_0() -> None:
    dump = read_dump(LOGS / "note0.txt")
    found = seen(dump)
    assert dump.tokens == (1,)
    assert found["embd", "Q4_K_M", None, "first"] == (0.0, -0.01671875, -0.00489044)
    assert found["embd", "Q4_0", None, "first"] == (0.00000381, -0.01672363, -0.00485229)
    assert dict(found["result_output", "", None, "at"])[20780] == 9.579  # type: ignore[call-overload]


def test_note_1() -> None:
    found = seen(read_dump(LOGS / "note1.txt"))
    assert found["l_out-21", "", None, "first"] == (0.70855033, 1.0006536, -0.22543797, 0.7980008)
    assert found["result_norm", "", None, "first"] == (1.1820991, 1.5812036, -0.38069266, 1.3746278)
    assert dict(found["result_output", "", None, "at"]) == {450: 0.06317, 20780: 9.579187}  # type: ignore[call-overload]


def test_note_2_is_a_stride_and_not_a_match() -> None:
    dump = read_dump(LOGS / "note2.txt")
    found = seen(dump)
    assert found["embd", "RusTorch", None, "first"] == (-0.0013961792, 0.0020942688, -0.0013961792)
    assert found["embd", "Python", None, "at"] == ((0, -0.0013961792), (1, 0.0006980896), (2, 0.0020942688))
    (line,) = contradictions(dump)
    assert line == (
        "embd: RusTorch and Python are not the same values: element 1 of the first (0.00209427) is element 2 of the "
        "second, whose element 1 is 0.00069809; a stride of 2"
    )


def test_note_3() -> None:
    dump = read_dump(LOGS / "note3.txt")
    found = seen(dump)
    assert len(dump.tokens) == 14 and dump.tokens[:2] == (1, 29966)
    assert found["l_out-0", "RusTorch", None, "first"] == (0.0047632228, -1.03051425e-5, -0.0019137387)
    assert found["l_out-0", "RusTorch", None, "rms"] == 0.014175
    assert found["result_norm", "llama.cpp", None, "rms"] == 1.848
    assert found["embd", "RusTorch", None, "min"] == -0.007652879
    assert [i for i, _ in found["result_output", "RusTorch", None, "at"]] == [485, 814, 9716, 15043]  # type: ignore[attr-defined]
    assert not contradictions(dump)


def test_note_4_has_an_impossible_top_logit() -> None:
    dump = read_dump(LOGS / "note4.txt")
    found = seen(dump)
    assert found["result_output", "", 0, "max"] == 4.554
    assert found["result_output", "", 2, "top"] == ((19762, 5.61), (21434, 5.03), (14656, 4.92))
    lines = contradictions(dump)
    assert len(lines) == 3
    assert lines[0] == (
        "result_output, row 0: a top value of 5.62 lies above the maximum of 4.554; "
        "the two lines describe different arrays"
    )


def test_whole_notes_parse(shared_dir: Path) -> None:
    counts = [len(read_log(path).observations) for path in sorted((shared_dir / "seeds").glob("*.txt"))]
    assert len(counts) == 5 and min(counts) >= 2  # "Block 64" of a tensor is no layer, and its values are not read


# -- the language ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "line", "holes"),
    [
        (
            "L{layer} {name} rms={rms}",
            "  L3 attn_norm   rms= 1.25e-2",
            {"layer": "3", "name": "attn_norm", "rms": "1.25e-2"},
        ),
        ("[{first}]", "[1.5, -2e-3, 3, ...]", {"first": "1.5, -2e-3, 3, ..."}),
        ("top: {top}", "top: (7, 1.5), (8, '-2')", {"top": "(7, 1.5), (8, '-2')"}),
        ("max * {max}", "MAX of them is 3.5", {"max": "3.5"}),
    ],
)
def test_patterns(pattern: str, line: str, holes: dict[str, str]) -> None:
    found = Pattern(pattern).match(line)
    assert found is not None and {k: v.strip() for k, v in found.items()} == holes


def test_a_layer_without_a_name_is_told_from_the_line(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("Layer 1 out: rms=3.25 head=[0.5, 1.5]\n")
    dump = read_dump(tmp_path / "x.log", ["layer {layer} out: rms={rms} head=[{first}]"])
    assert seen(dump) == {("l_out-1", "", None, "rms"): 3.25, ("l_out-1", "", None, "first"): (0.5, 1.5)}


def test_own_patterns_come_first(tmp_path: Path, model: Model) -> None:
    (tmp_path / "x.log").write_text("tokens: [1, 300, 297]\nfrob=1 node=zap norm 3.25\nfrob=0 node=zap norm 2.5\n")
    with pytest.raises(AssayError, match="no line that names a node"):
        read_dump(tmp_path / "x.log")
    (tmp_path / "x.log").write_text("tokens: [1, 300, 297]\nfrob=1 node=l_out norm 3.25\nfrob=0 node=l_out norm 2.5\n")
    dump = read_dump(tmp_path / "x.log", ["frob={layer} node={name} norm {rms}"])
    assert seen(dump) == {("l_out-1", "", None, "rms"): 3.25, ("l_out-0", "", None, "rms"): 2.5}
    assert dump.tokens == (1, 300, 297) and dump.observations[0].printed == (0.005,)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("{avg}", "unknown hole"), ("{rms} {rms}", "twice"), ("x", "no hole"), ("1 {first}", "begin with")],
)
def test_bad_patterns(pattern: str, message: str) -> None:
    with pytest.raises(AssayError, match=message):
        Pattern(pattern)


@given(st.text(max_size=200))
def test_any_text_is_read(line: str) -> None:
    read_log(Path("x"), ("layer {layer} * {first}", "{name}: {rms}"), text=line)


HOSTILE = (
    "Tokens: [" + "12345, " * 15000 + "; end]", "[" * 100_000, "1" * 100_000, "a.b" * 33_000, "1.1" * 30_000,
    '"a' * 50_000, "- " * 50_000, "2025-" * 20_000, " " * 100_000, "a-1" * 30_000, "0_" * 50_000, "[1]" * 30_000,
    "\x1b[" * 50_000, "\x1b]" * 50_000, "nan" * 30_000, "INFO " * 20_000, "1e" * 50_000, "a/" * 50_000,
    "Tokens " * 14_000, "'\\" * 50_000, "layer 1 " * 12_000, "x 1 1 " * 16_000, "| 1 " * 25_000, "[1, 2], " * 12_000,
    "layer 0 x[3] = 0.5 " * 5_000, "q(0) = 1.5, 2.5 " * 6_000, "L0=1.5 " * 14_000, "`1.5, 2.5`" * 10_000,
    "层" * 100_000, "2:2.5, " * 14_000, "max|x|" * 16_000, "0,1234;" * 14_000, "<td>" * 25_000, "x + y " * 16_000,
)  # fmt: skip


@pytest.mark.parametrize("line", HOSTILE, ids=lambda line: repr(line[:12]))
def test_work_grows_with_the_line_and_no_faster(line: str) -> None:
    """Steps of the interpreter, not seconds: four times the line is at most five times the work."""
    patterns = ("L{layer} {name} rms={rms}", "a * b * {first}", "[{first}]", "x {first}", "Tokens*: [{tokens}]")

    def steps(text: str) -> int:
        count = 0

        def trace(frame: object, event: str, arg: object) -> object:
            nonlocal count
            count += 1
            return trace

        old = sys.gettrace()
        sys.settrace(trace)
        try:
            read_log(Path("x"), patterns, text=text)
        finally:
            sys.settrace(old)
        return count

    short, long = steps(line[:8000]), steps(line[:32000])
    assert long <= 5 * short + 2000
    read_log(Path("x"), patterns, text=line)


@pytest.mark.parametrize(
    ("printed", "halves"),
    [
        (("0.56103", "-2.135831"), (5e-7, 5e-7)),  # rounded to six decimals, zeros dropped
        (("0.56103", "0.0281263"), (5e-7, 5e-8)),  # six digits, zeros dropped
        (("1.50", "2.25"), (5e-3, 5e-3)),  # two decimals
        (("1e-3", "2.5"), (5e-4, 5e-2)),
        (("3", "4"), (0.5, 0.5)),
    ],
)
def test_what_a_list_of_numbers_was_rounded_to(printed: tuple[str, ...], halves: tuple[float, ...]) -> None:
    assert half_units([number(t) for t in printed]) == pytest.approx(halves)


@given(st.lists(st.floats(-1e3, 1e3).filter(lambda x: x == 0 or abs(x) > 1e-4), min_size=1, max_size=8),
       st.sampled_from((".3g", ".6g", ".9g", ".4f", ".6e")))  # fmt: skip
def test_a_printed_number_lies_within_its_interval(values: list[float], fmt: str) -> None:
    texts = [format(v, fmt) for v in values]
    halves = half_units([number(t) for t in texts])
    for value, text, half in zip(values, texts, halves, strict=True):
        assert abs(float(text) - value) <= half * (1 + 1e-9) + 1e-15


def test_what_loggers_put_before_a_line_is_passed_over() -> None:
    line = "\x1b[2m2026-11-01T12:30:00.123Z\x1b[0m INFO src/model.rs:42: layer 0: [0.5, 1.5]"
    assert without_prefix(line) == "layer 0: [0.5, 1.5]" and len(lex(without_prefix(line))) == 4


@pytest.mark.parametrize(("text", "half"), [("0.014175", 5e-7), ("-1.03051425e-5", 5e-14), ("12", 0.5), ("4.", 0.5)])
def test_rounding_of_a_print(text: str, half: float) -> None:
    assert half_unit(text) == pytest.approx(half)


def test_a_log_is_judged(model: Model, truth: Dump, tmp_path: Path) -> None:
    """Two layers in a stranger's words, rounded to five digits: right, then with one figure changed."""
    rows = []
    for layer in (0, 1):
        value = truth.values(f"l_out-{layer}")
        assert value is not None
        first = ", ".join(f"{x:.5f}" for x in value[-1, :4])
        rms = float((value[-1] ** 2).mean() ** 0.5)
        rows.append(f"### Layer {layer} output\nrms={rms:.5f}, first_10=[{first}, ...]\n")
    text = f"Tokens: {TOKENS}\n" + "".join(rows)
    (tmp_path / "x.log").write_text(text)
    dump = load_dump(tmp_path / "x.log", model)
    assert any("the last token's row" in note for note in dump.notes)
    assert judge(model, dump).verdict == "same"
    (tmp_path / "x.log").write_text(text.replace("first_10=[", "first_10=[1"))
    assert not judge(model, load_dump(tmp_path / "x.log", model))


@pytest.mark.parametrize("log", ["gate_up_swapped", "scale_missing"])
def test_an_engine_that_is_wrong_from_layer_0_on_shows_one_row(log: str, smollm2: Path) -> None:
    """No list is near any row of the definition: the first layer decides, and all kinds of values are of one row."""
    model = load(open_file(smollm2))
    dump = load_dump(LOGS / f"{log}.txt", model, tokens=(504, 3575, 282, 4649, 314))
    assert dump.prompt == "The capital of France is"
    assert {o.rows for o in dump.observations} == {(4, 5)}
    assert {o.name for o in dump.observations} == {*(f"l_out-{i}" for i in range(30)), "result_output"}


@pytest.mark.parametrize(
    ("line", "prompt"),
    [
        ('prompt: "The sky"', "The sky"),
        ("Prompt = 'a b'", "a b"),
        ("input_text: “x”", "x"),
        ("prompt tokens: 5", ""),
        ("prompt: 5.25", ""),
    ],
)
def test_a_quoted_prompt_is_kept(line: str, prompt: str, tmp_path: Path) -> None:
    assert read_log(tmp_path / "x.log", text=f"{line}\nlayer 0 out: 1.5 2.5 3.5\n").prompt == prompt


_HEADS = {
    "l2": ("attn_out_l2", "ffn_out_l2", "hidden_l2"),
    "words": ("attn_out L2", "ffn_out L2", "hidden L2"),
    "norm": ("attn_out_norm", "ffn_out_norm", "hidden_norm"),
    "camel": ("attnOutNorm", "ffnOutNorm", "hiddenNorm"),
    "function": ("norm(attn_out)", "norm(ffn_out)", "norm(hidden)"),
}
_NORMS = ((1.1052, 1.70057, 3.71727), (1.02645, 3.08435, 5.56015), (1.5894, 4.83035, 9.1509))


def _boxed(heads: tuple[str, ...], rows: list[tuple[object, ...]], bar: str = "│") -> str:
    lines = [f" {bar} ".join(map(str, cells)) for cells in (heads, *rows)]
    return "\n".join(["┌───┬───┐", *(f"{bar} {line} {bar}" for line in lines), "└───┴───┘"])


def _table(form: str, heads: tuple[str, ...]) -> str:
    rows: list[tuple[object, ...]] = [(i, *row) for i, row in enumerate(_NORMS)]
    if form == "console.table":
        return _boxed(("(index)", "layer", *heads), [(i, *row) for i, row in enumerate(rows)])
    if form == "console.table, layers counted":
        return _boxed(("(index)", *heads), rows)
    if form == "Markdown":
        return _boxed(("layer", *heads), rows, "|")
    if form == "pandas":
        return "   layer  " + "  ".join(heads) + "\n" + "\n".join("  ".join(map(str, (r[0], *r))) for r in rows)
    mark = {"CSV": ",", "TSV": "\t", "semicolons": ";"}[form]
    return "\n".join(mark.join(map(str, cells)) for cells in (("layer", *heads), *rows))


@pytest.mark.parametrize("heads", _HEADS)
@pytest.mark.parametrize(
    "form", ["console.table", "console.table, layers counted", "Markdown", "pandas", "CSV", "TSV", "semicolons"]
)
def test_a_table_of_norms_is_read_whole(form: str, heads: str) -> None:
    dump = read_log(Path("table"), text=_table(form, _HEADS[heads]) + "\n")
    found = {(o.name, o.kind): o.data for o in dump.observations}
    names = ("attn_out", "ffn_out", "l_out")
    assert found == {(f"{n}-{i}", "norm"): x for i, row in enumerate(_NORMS) for n, x in zip(names, row, strict=True)}


PANDAS = """\
tokens: [1, 5, 6]
   layer     tensor      mean       std        min        max dtype  time_us
0      0  attn_norm -0.079961  1.000506  -2.807089   1.905982   f32     12.5
1      0   attn_out -0.043233  2.319012 -14.082861  15.149072   f32     12.5
"""
NO_INDEX = """\
 layer  attn_out_rms  mlp_out_rms
     0      2.319415 5.746984
     1      1.726833 5.419363
"""
CUT = """\
   layer     tensor     mean      std  ...  dtype time_us
0      0  attn_norm -0.07996  1.00051  ...    f32    12.5
1      0   attn_out -0.04323  2.31901  ...    f32    12.5
"""
JIRA = "|| layer || attn_out_rms || mlp_out_rms ||\n| 0 | 2.319415 | 5.746984 |\n| 1 | 1.726833 | 5.419363 |\n"


@pytest.mark.parametrize(
    ("text", "count", "kinds"),
    [(PANDAS, 8, {"mean", "std", "min", "max"}), (NO_INDEX, 4, {"rms"}), (CUT, 4, {"mean", "std"}), (JIRA, 4, {"rms"})],
)
def test_data_frames_and_other_tables(text: str, count: int, kinds: set[str]) -> None:
    found = read_log(Path("log"), (), text).observations
    assert len(found) == count and {o.kind for o in found} == kinds
    assert {o.layer if o.layer is not None else int(o.name[-1]) for o in found} <= {0, 1}


def test_a_column_that_is_not_read_is_said() -> None:
    text = "layer,attn_out_norm,weird_thing,rms\n0,1.5,3.5,1.0\n1,2.5,4.5,2.0\n"
    dump = read_log(Path("log"), (), text)
    assert len(dump.observations) == 2 and "weird_thing, rms" in dump.notes[0]
    assert not read_log(Path("log"), (), text.replace(",weird_thing,rms", "").replace(",3.5,1.0", "")).notes
