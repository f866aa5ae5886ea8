"""Special tokens: the same cuts as searching for each token in turn, in the time of one pass."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from assay.text.special import Fragment, SpecialTokens
from assay.text.vocab import TokenKind
from tests.hostile.conftest import bounded

_WHITE = " \t\n\v\f\r"


class Words:
    """As much of a vocabulary as the cutter reads."""

    def __init__(self, rows: list[tuple[str, int]]) -> None:
        self.tokens = [text for text, _ in rows]
        self.kinds = bytes(kind for _, kind in rows)


def one_after_another(rows: list[tuple[str, int]], text: str, parse_special: bool) -> list[Fragment]:
    """The definition: the longest token over the whole text, then the next over what is left."""
    fragments: list[Fragment] = [text] if text else []
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i][0].encode()))
    for i in order:
        token, kind = rows[i]
        if not token or not kind & TokenKind.SPECIAL or (kind & TokenKind.HIDDEN and not parse_special):
            continue
        parts: list[Fragment] = []
        for fragment in fragments:
            rest = fragment
            while isinstance(rest, str) and (at := rest.find(token)) >= 0:
                left, rest = rest[:at], rest[at + len(token) :]
                left = left.rstrip(_WHITE) if kind & TokenKind.LSTRIP else left
                rest = rest.lstrip(_WHITE) if kind & TokenKind.RSTRIP else rest
                parts += [left, i] if left else [i]
            if rest != "":
                parts.append(rest)
        fragments = parts
    return fragments


kinds = st.sampled_from([TokenKind.SPECIAL, TokenKind.SPECIAL | TokenKind.HIDDEN]).flatmap(
    lambda base: st.sampled_from(
        [base, base | TokenKind.LSTRIP, base | TokenKind.RSTRIP, base | TokenKind.LSTRIP | TokenKind.RSTRIP]
    )
)
token = st.text("<ab> é", min_size=0, max_size=6)


@given(st.lists(st.tuples(token, kinds.map(int)), max_size=8, unique_by=lambda row: row[0]), st.data(), st.booleans())
def test_the_same_cuts_as_one_token_after_another(
    rows: list[tuple[str, int]], data: st.DataObject, parse_special: bool
) -> None:
    pieces = [text for text, _ in rows] + ["a", "<", " ", "\n", "é", "b>"]
    text = "".join(data.draw(st.lists(st.sampled_from(pieces), max_size=20)))
    found = SpecialTokens(Words(rows)).split(text, parse_special)  # type: ignore[arg-type]
    assert found == one_after_another(rows, text, parse_special)
    assert not any(isinstance(a, str) and isinstance(b, str) for a, b in pairwise(found))


def test_two_megabytes_of_one_token_and_of_thousands() -> None:
    """Neither the number of finds nor that of tokens multiplies with the length: cutting each in turn takes minutes."""
    code = """
from tests.text.test_special import Words
from assay.text.special import SpecialTokens
from assay.text.vocab import TokenKind
names = ["</s>"] + [f"<unused{i}>" for i in range(6000)]
cutter = SpecialTokens(Words([(name, int(TokenKind.SPECIAL)) for name in names]))
assert len(cutter.split("</s>" * 524_000, True)) == 524_000
many = [i % 6000 + 1 for i in range(150_000)]
assert cutter.split("".join(names[i] for i in many), True) == many
assert cutter.split("<" * 2_000_000, True) == ["<" * 2_000_000]
"""
    done = bounded("-c", code, seconds=40)
    assert done.returncode == 0, done.stderr[-1000:]
