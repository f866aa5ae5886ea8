"""Markdown, mathematics and code colours: exact trees in Node, hostile texts in linear time, elements in Chromium."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.serve.page.conftest import Tab

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "src" / "assay" / "serve" / "page"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed")

# Trees as short text: (tag child child), text as it is.
SHOW = """
const head = (n) => n.tag + (n.attrs.href ? `@${n.attrs.href}` : "");
const show = (n) => typeof n === "string" ? n : `(${[head(n), ...n.kids.map(show)].join(" ")})`;
"""


def run(script: str, given: object) -> Any:
    """Run a module script over the page's modules in Node; it writes JSON."""
    code = f"import {{ readFileSync }} from 'node:fs';\nconst given = JSON.parse(readFileSync(0));\n{SHOW}\n{script}"
    found = subprocess.run(
        [str(NODE), "--input-type=module", "-e", code],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        cwd=PAGE,
        timeout=60,
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def trees(texts: list[str]) -> list[str]:
    script = (
        f"import {{ parse }} from '{PAGE / 'blocks.js'}';"
        " console.log(JSON.stringify(given.map((t) => parse(t).map(show).join(' '))));"
    )
    return list(run(script, texts))


WORDS = {
    "a *b* **c** ***d*** _e_ __f__ ~~g~~": "(p a  (em b)   (strong c)   (em (strong d))   (em e)   (strong f)   (s g))",
    "2*3*4 snake_case_name": "(p 2 (em 3) 4 snake_case_name)",
    "`a` ``b ` c`` `` unclosed": "(p (code a)   (code b ` c)  `` unclosed)",
    "[a *b*](https://c.d/e_(f)) [x](javascript:alert(1)) [y](data:text/html,z)": (
        "(p (a@https://c.d/e_(f) a  (em b))  x y)"
    ),
    "see https://a.b/c(d), <https://e.f> and <b>": (
        "(p see  (a@https://a.b/c(d) https://a.b/c(d)) ,  (a@https://e.f https://e.f)  and <b>)"
    ),
    "&lt;b&gt; &#65; &#x1F98A; &bogus; \\*not\\*": "(p <b> A 🦊 &bogus; *not*)",
    "# One #\nTwo\n===\n### Three": "(h3 One) (h3 Two) (h5 Three)",
    "- a\n- b\n  - c\n    d\n\n  e\n- f": "(ul (li a) (li b (ul (li c (br) d)) (p e)) (li f))",
    "3. a\n4. b\n- [ ] c\n- [x] d": "(ol (li a) (li b)) (ul (li ☐ c) (li ☑ d))",
    "> a\n> > b\nc": "(blockquote (p a) (blockquote (p b))) (p c)",
    "text:\n| a | b\\|c |\n|---|:-:|\n| 1 | 2 | 3 |": (
        "(p text:) (table (thead (tr (th a) (th b|c))) (tbody (tr (td 1) (td 2))))"
    ),
    "```py\nx = '`'\n```\n~~~\ny": "(pre x = '`') (pre y)",
    "a\n---\nb\n* * *": "(p a) (hr) (p b) (hr)",
    "costs $5 and $6, or $7": "(p costs $5 and $6, or $7)",
}  # fmt: skip
MATH = {
    "x^2_i": "(msubsup (mi x) (mi i) (mn 2))",
    "\\frac{a}{2}": "(mfrac (mi a) (mn 2))",
    "\\sqrt[3]{x}": "(mroot (mi x) (mn 3))",
    "\\alpha \\le \\Omega": "(mi α) (mo ≤) (mi Ω)",
    "\\sum_{i=1}^n": "(munderover (mo ∑) (mrow (mi i) (mo =) (mn 1)) (mi n))",
    "\\int_0^1": "(msubsup (mo ∫) (mn 0) (mn 1))",
    "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}": (
        "(mrow (mtable (mtr (mtd (mn 1)) (mtd (mn 2))) (mtr (mtd (mn 3)) (mtd (mn 4)))))"
    ),
    "\\left( x \\right]": "(mrow (mo () (mi x) (mo ]))",
    "\\text{if } f'": "(mtext if ) (msup (mi f) (mo ′))",
    "\\unknown{x}": "(mtext \\unknown) (mrow (mi x))",
    "\\mathbb{R} \\hat{y} \\sin x": "(mi ℝ) (mover (mi y) (mo ^)) (mi sin) (mspace) (mi x)",
    "\\constructor \\left\\toString": "(mtext \\constructor) (mrow (mo ) (mo ))",
}  # fmt: skip


@needs_node
def test_markdown_becomes_these_trees() -> None:
    found = dict(zip(WORDS, trees(list(WORDS)), strict=True))
    assert found == WORDS


@needs_node
def test_mathematics_becomes_these_trees() -> None:
    script = (
        f"import {{ tex }} from '{PAGE / 'math.js'}';"
        " console.log(JSON.stringify(given.map((t) => tex(t, true).kids[0].kids.map(show).join(' '))));"
    )
    assert dict(zip(MATH, run(script, list(MATH)), strict=True)) == MATH
    whole = trees(["a $x$ b \\(y\\)\n\\[\nz\n\\]", "$$x\n- y\n\\[ z"])
    assert whole[0] == "(p a  (math (mrow (mi x)))  b  (math (mrow (mi y)))) (p (math (mrow (mi z))))"
    assert "(math" not in whole[1]  # never closed: text


@needs_node
def test_code_is_coloured_and_never_changed() -> None:
    script = (
        f"import {{ highlight }} from '{PAGE / 'highlight.js'}';"
        " const piece = (p) => typeof p === 'string' ? ['', p] : [p.attrs.class, p.kids[0]];"
        " console.log(JSON.stringify(given.map(([l, t]) => highlight(t, l).map(piece))));"
    )
    given = [
        ["python", 'def f(x):  # note\n    return """a\nb""" + 0x1f'],
        ["js", "const a = `b${c}`; // d\n/* e */ f('g\\'h')"],
        ["sql", "SELECT a FROM b -- c"],
        ["html", '<p class="a">b</p><!-- c -->'],
        ["constructor", "x = 'y'"],
        ["", "x = 'y'"],
    ]
    found = run(script, given)
    for (_, text), pieces in zip(given, found, strict=True):
        assert "".join(piece for _, piece in pieces) == text
    kinds = [[p[0].removeprefix("code-") + ":" + p[1] for p in pieces if p[0]] for pieces in found]
    assert kinds[0] == ["word:def", "name:f", "note:# note", "word:return", 'text:"""a\nb"""', "number:0x1f"]
    assert kinds[1] == ["word:const", "text:`b${c}`", "note:// d", "note:/* e */", "name:f", "text:'g\\'h'"]
    assert kinds[2] == ["word:SELECT", "word:FROM", "note:-- c"]
    assert kinds[3] == ["name:p", 'text:"a"', "name:p", "note:<!-- c -->"]
    assert kinds[4] == kinds[5] == []


@needs_node
def test_hostile_shapes_take_linear_time() -> None:
    """Every shape that froze a Markdown parser, 40,000 characters each, whole and as a stream."""
    found = subprocess.run(
        [str(NODE), "fuzz/markdown.mjs", "--families", "40000"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert found.returncode == 0, found.stdout + found.stderr


@needs_node
def test_random_texts_are_safe_and_streams_draw_the_same() -> None:
    found = subprocess.run(
        [str(NODE), "fuzz/markdown.mjs", "--inputs", "1000", "--seed", "1", "--size", "20000"],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr
    assert json.loads(found.stdout.splitlines()[-1]) == {"inputs": 1000}


DRAW = """async text => {
  const { markdown } = await import('/page/markdown.js');
  const { make } = await import('/page/dom.js');
  const body = make('div', { class: 'body' }, markdown(text));
  document.getElementById('welcome').hidden = true;
  document.getElementById('messages').removeAttribute('data-empty');
  document.getElementById('messages').replaceChildren(make('article', { class: 'message assistant' }, body));
}"""


@pytest.mark.slow
def test_markdown_is_elements_and_nothing_else(tab: Tab) -> None:
    page = tab.page
    text = (
        "# Title\n\nSome **bold**, *slanted* and `code`; [a](https://a.example) [b](javascript:alert(1)) <b>raw</b>\n\n"
        "- one\n- two\n  - inner\n\n1. first\n2. second\n\n> quoted\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
        "```python\nprint('<i>hi</i>')\n```\n\n$\\frac{1}{2}$\n\n---\nunclosed **and ``` more"
    )
    page.evaluate(DRAW, text)
    at = page.locator("#messages")
    assert at.locator("h3").inner_text() == "Title"
    assert [at.locator(kind).first.inner_text() for kind in ("strong", "em", "p code")] == ["bold", "slanted", "code"]
    assert at.locator("a").evaluate_all("all => all.map(a => a.href)") == ["https://a.example/"]
    assert at.locator("b, i").count() == 0
    assert "<b>raw</b>" in at.inner_text()
    assert at.locator("ul > li").count() == 3
    assert at.locator("ol > li").all_inner_texts() == ["first", "second"]
    assert at.locator("blockquote").inner_text().strip() == "quoted"
    assert at.locator("td").all_inner_texts() == ["1", "2"]
    assert at.locator("pre code").inner_text() == "print('<i>hi</i>')"
    assert at.locator("mfrac").evaluate("e => e.namespaceURI") == "http://www.w3.org/1998/Math/MathML"
    assert at.locator("pre .code-name").inner_text() == "print"
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    at.locator(".copy").click()
    assert page.evaluate("navigator.clipboard.readText()") == "print('<i>hi</i>')"


@pytest.mark.slow
def test_long_code_is_folded_and_long_lines_fade(tab: Tab) -> None:
    page = tab.page
    page.evaluate(DRAW, "```\n" + "x" * 500 + "\n" + "y\n" * 60 + "```")
    code = page.locator(".code")
    page.wait_for_selector(".code.cut.folded")
    code.locator(".unfold").click()
    assert "folded" not in (code.get_attribute("class") or "")
    code.locator("pre").evaluate("e => { e.scrollLeft = e.scrollWidth; }")
    page.wait_for_selector(".code:not(.cut)")


@pytest.mark.slow
def test_hostile_answers_do_not_freeze_the_page(tab: Tab) -> None:
    """The texts that froze the page, as they would arrive from a model; the page answers meanwhile and afterwards."""
    page = tab.page
    texts = [
        "".join("`" * i + " " for i in range(300)),
        "# a" + " " * 8000,
        ">" * 12000,
        "*a " * 4000,
        "[a](" * 4000,
        "- " * 4000,
    ]
    shapes = page.evaluate(
        """async texts => {
          const { growing } = await import('/page/markdown.js');
          const unsafe = [];
          for (const text of texts) {
            const body = document.createElement('div');
            document.querySelector('main').append(body);
            const grown = growing(body);
            for (let at = 0; at < text.length; at += 40) grown.push(text.slice(at, at + 40));
            grown.end();
            body.getBoundingClientRect();
            unsafe.push(body.querySelectorAll('script, img, iframe, [onclick], [onerror]').length);
            body.remove();
          }
          return unsafe;
        }""",
        texts,
    )
    assert shapes == [0] * len(texts)
    tab.ask("hello", 4)
    tab.wait()
    assert page.locator(".message.assistant .body").inner_text()
