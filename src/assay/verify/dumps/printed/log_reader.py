"""Reads a printed log line by line: `read_log` returns its observations.

A line names a subject (a node, a layer, a token's row, an engine) and gives numbers: a list, columns, rows of an array,
statistics by name, token ids with logits. Headings supply the missing parts of a subject. Tables have their own header.
Lines with numbers that name no known node are kept for matching by values.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from assay.system.text_files import decode_text
from assay.verify.dumps.naming.layer_and_row import row_of
from assay.verify.dumps.naming.phrases import NOT_VALUES, TIMES, VALUES, Meaning, meaning, split_words
from assay.verify.dumps.naming.statistic_names import statistic, statistic_of_each_token
from assay.verify.dumps.observation import STATISTICS, Dump, Observation
from assay.verify.dumps.printed.block_statements import block_statements
from assay.verify.dumps.printed.call_columns import with_calls_headed
from assay.verify.dumps.printed.column_parts import with_parts_joined
from assay.verify.dumps.printed.common_prefixes import without_common_prefix
from assay.verify.dumps.printed.counted_headings import with_positions_marked
from assay.verify.dumps.printed.counted_lists import without_lengths
from assay.verify.dumps.printed.counted_prefixes import with_layers_named
from assay.verify.dumps.printed.debugger_values import with_debugger_values
from assay.verify.dumps.printed.decode_steps import DecodeSteps, call_of, step_of
from assay.verify.dumps.printed.diff_lines import own_lines
from assay.verify.dumps.printed.expert_lists import with_expert_lists
from assay.verify.dumps.printed.habits import by_habit
from assay.verify.dumps.printed.heading_rules import heading
from assay.verify.dumps.printed.headings import EachToken, HeadingStack, indent_of
from assay.verify.dumps.printed.html_text import as_plain_text
from assay.verify.dumps.printed.laid_out_tables import with_tables_laid_out
from assay.verify.dumps.printed.lexer import lex
from assay.verify.dumps.printed.line_blocks import Block, blocks
from assay.verify.dumps.printed.line_parser import parse_line
from assay.verify.dumps.printed.matrix_rows import with_matrix_rows_named
from assay.verify.dumps.printed.nested_documents import one_record_a_line
from assay.verify.dumps.printed.notebook_text import notebook_as_text
from assay.verify.dumps.printed.number_notations import in_decimal
from assay.verify.dumps.printed.numbered_names import with_numbered_names
from assay.verify.dumps.printed.numpy_asserts import with_asserted_arrays
from assay.verify.dumps.printed.patterns import Pattern
from assay.verify.dumps.printed.plainer_lines import plainer
from assay.verify.dumps.printed.position_columns import with_position_columns_as_lists
from assay.verify.dumps.printed.position_spans import with_spans_of_calls
from assay.verify.dumps.printed.statement_observations import joined, observations_of
from assay.verify.dumps.printed.statements import Statement
from assay.verify.dumps.printed.steps_on_lines import with_steps_headed
from assay.verify.dumps.printed.tables import PrintedTable, aligned, table_header, table_row, unread_columns, with_index
from assay.verify.dumps.printed.titles import title_statistic, with_ids, with_title

MAX_BYTES = 1 << 27  # of a log
_MAX_UNEXPLAINED = 200  # lines with numbers that were not understood, kept for the message
_MAX_STEPS = 4096
_MAX_UNREAD = 1 << 16  # numbers of such lines, kept for matching by values
_OF_AN_ARRAY = {
    "tensor", "array", "shape", "dtype", "float", "float32", "float16", "bfloat16", "half", "torch", "np", "jnp",
}  # fmt: skip
_CELL = re.compile(r"\s*In \[\d{0,5}\]:\s*")  # of a notebook: its headings do not reach into the next cell
_TOKEN = re.compile(r"\btok(?:en)?\s{0,3}[#:=\[]?\s{0,3}(\d{1,6})\b[^\d.]{1,16}(\d{1,7})\b(?!\.\d)", re.IGNORECASE)
# A member of a printed configuration: Cfg { n_layer: 30, n_head: 9, dim: 576, ffn: 1536, eps: 1e-5 }
_SIZE = re.compile(
    r"\b(arch|(?:n_?)?layers?|num_hidden_layers|(?:n_?)?heads?|n_?kv_?h?e?a?d?s?|n_?embd|dim|hidden_size|d_model|hidden_dim|"
    r"(?:n_?)?vocab|vocab_size|n_?ff|ffn?|head_dim|hd|n_?rot|n_?ctx|seq_len|max_seq_len|eps|rope_\w{1,20}|base|theta|threads)"
    r"[\"']?\s{0,3}[:=]\s{0,3}[\"'\d]",
    re.IGNORECASE,
)
_SIZES = 5  # such members make a line a configuration
_DECIMAL = re.compile(r"\d\.\d")
# layer 0: attn 1.2345 | mlp 2.3456: a number each of the statistic that a title names
_NAMED_RUN = re.compile(
    r"(\s{0,8}(?:(?:layer|block|blk|l)[ _]?\d{1,3}\s{0,3}[:|]?\s{1,8})?)"
    r"((?:[A-Za-z]\w{0,30}\s?[=:]?\s{1,8}\d{1,9}\.\d{1,12}\s{0,8}[|,;]?\s{0,8}){2,16})",
    re.IGNORECASE,
)
_NAMED_NUMBER = re.compile(r"([A-Za-z]\w{0,30})\s?[=:]?\s{1,8}(\d{1,9}\.\d{1,12})\s{0,8}[|,;]?")
_WHOLE = re.compile(r"\s{2,40}\d{1,7}(?:\s{1,40}\d{1,7}){0,400}\s{0,40}")
_LISTED = re.compile(r"\W{0,6}(\d{1,7}(?:[\s,;]{1,4}\d{1,7}){1,4000})\W{0,4}")
_COUNTED = re.compile(r"\(\d{1,5}\)[\s:=]{0,4}\[?\s{0,4}\d")  # promptTokens (12) [1, 338, … or prompt ids (8): 1 403 …
_LETTER = re.compile(r"[^\W\d_]")
_PUT = re.compile(
    r"\s*(?:(?:\w{0,12}[Bb]lock|[Ll]ayer|[Ll])\s?\d{1,4}\s{1,4})?([A-Za-z_]\w{0,15})\s{0,16}(?:<-|:?=|\+=)\s{0,8}[A-Za-z(]"
)


# A line such as: prompt: "The capital of France is"
_PROMPT = re.compile(
    r"""\s{0,40}(?:input[ _])?(?:prompt|text)\s{0,8}[:=]\s{0,8}(?:"(.{1,4000})"|'(.{1,4000})'|“(.{1,4000})”)\s{0,40}""",
    re.I,
)
_PUT_BEHIND = re.compile(r"(?:->|→|=>)\s{0,4}([A-Za-z_]\w{0,15})\s{1,40}(?:[-+]?\.?\d|[\[(:=])")


def read_log(path: Path, patterns: Sequence[str] = (), text: str | None = None) -> Dump:
    """Observations from any text that people print or paste. Patterns of the caller are tried first."""
    if text is None:
        with open(path, "rb") as file:
            text = decode_text(file.read(MAX_BYTES), str(path), lenient=True)
    text, compared = own_lines(in_decimal(as_plain_text(notebook_as_text(text))))
    reader = _LogReader([Pattern(p) for p in patterns])
    for rewritten in _REWRITTEN:
        text = rewritten(text)
    for number, line, block in blocks(path, text):
        reader.read(line, block, f"{path}: line {number}")
    tokens = reader.tokens
    counted = not reader.positions or len(tokens) not in (0, len(reader.positions))
    positions = tuple(range(len(tokens))) if counted else reader.positions
    now, unread, later = _steps_of(reader)
    return Dump(
        path.stem, tokens, positions, (len(tokens),) if tokens else (), tuple(joined(now)),
        str(path), log=True, unexplained=tuple(a for _, a in reader.unexplained),
        unexplained_at=tuple(w for w, _ in reader.unexplained), unread=tuple(unread), prompt=reader.prompt,
        notes=((compared,) if compared else ()) + _columns_note(reader.ignored), later=later,
        fed=reader.decoding.fed, decoded=reader.decoding.in_order,
    )  # fmt: skip


# Passes over a whole text, in this order: its layout says what no line says alone
_REWRITTEN = (
    without_common_prefix,
    with_parts_joined,
    with_asserted_arrays,
    one_record_a_line,
    with_numbered_names,
    with_debugger_values,
    without_lengths,
    with_matrix_rows_named,
    with_calls_headed,
    with_position_columns_as_lists,
    with_tables_laid_out,
    with_expert_lists,
    with_spans_of_calls,
    with_steps_headed,
    with_layers_named,
    with_positions_marked,
)
_OF_THE_ENGINE = {"argmax", "best", "generated", "greedy", "next", "predicted", "prediction", "predictions", "sampled"}
_IDS = re.compile(
    r"^(?:\S{1,40}:\d{1,6}\s)?\W{0,6}(?:\w{1,20}[ _]){0,2}?(?:prompt|input|fed|token|tok)?[ _]?"
    r"(?:tokens|token[ _]?ids|ids|prompt)\b[^\d\[(]{0,12}(?:\(\d{1,5}\))?"
    r"\W{0,6}(\d{1,7}(?:[\s,;]{1,4}\d{1,7}){1,4000})\W{0,4}$",
    re.IGNORECASE,
)


def ids_of_line(line: str) -> tuple[int, ...]:
    """The token ids of a line that lists nothing else: `# tokens: 1 403 407`."""
    m = _IDS.match(line) if len(line) < 100_000 else None
    return tuple(int(n) for n in re.findall(r"\d{1,7}", m[1])) if m else ()


def _columns_note(heads: Sequence[str]) -> tuple[str, ...]:
    told = list(dict.fromkeys(heads))
    if not told:
        return ()
    rest = f" and {len(told) - 5} more" if len(told) > 5 else ""
    return (f"columns that were not read: {', '.join(told[:5])}{rest}; head a column with a node or a statistic",)


def _steps_of(
    reader: _LogReader,
) -> tuple[list[Observation], list[Observation], tuple[tuple[int, tuple[Observation, ...]], ...]]:
    """Printed values of the prompt, named and unnamed, and those of each decode step below a heading."""
    found, unread, marks = reader.found, reader.unread, reader.steps
    if not marks or not (marks[0][1] or reader.tokens):
        return found, unread, ()
    ends = [*((a, b) for _, a, b in marks[1:]), (len(found), len(unread))]
    later = (
        (token, tuple(joined([*found[a:c], *unread[b:d]]))) for (token, a, b), (c, d) in zip(marks, ends, strict=True)
    )
    return found[: marks[0][1]], unread[: marks[0][2]], tuple(step for step in later if step[1])


@dataclass
class _LogReader:
    """The observations so far, and the state for the next line: headings, the table, the last lines."""

    patterns: list[Pattern]
    tokens: tuple[int, ...] = ()
    prompt: str = ""
    found: list[Observation] = field(default_factory=list)
    unread: list[Observation] = field(default_factory=list)  # of nodes without a name
    unexplained: list[tuple[str, str]] = field(default_factory=list)  # place and text of lines not understood
    context: HeadingStack = field(default_factory=HeadingStack)
    table: PrintedTable = field(default_factory=PrintedTable)
    nth: int = 0  # row of the table
    layer: int | None = None  # of the last row of the table
    sides: set[str] = field(default_factory=set)
    titles: deque[str] = field(default_factory=lambda: deque(maxlen=4))  # the last lines without values
    caption: tuple[str, Statement] | None = None  # the last of them, if it is no heading
    fenced: bool = False  # inside a Markdown code fence
    kept: int = 0  # numbers in `unread`
    # Of decode steps: the token, and the places in `found` and `unread`.
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    decoding: DecodeSteps = field(default_factory=DecodeSteps)
    positions: tuple[int, ...] = ()  # if the log lists them, and they do not begin with 0
    open_ids: int = 0  # ids of the line before, which may go on in this one
    ignored: list[str] = field(default_factory=list)  # heads of columns that were not read

    def read(self, line: str, block: Block | None, where: str) -> None:
        """Read a line, or lines of numbers that belong together."""
        line = self._with_statistic(plainer(line)) if block is None else line
        line = self.decoding.without_following(line) if block is None else line
        if block is None and self.decoding.look(line):
            return
        step = self._step(line) if block is None and len(line) < 4000 and len(self.steps) < _MAX_STEPS else None
        if step is not None:
            self.steps.append((step, len(self.found), len(self.unread)))
            self.context, self.table, self.caption = HeadingStack(side=self.context.side), PrintedTable(), None
            return
        if block is None and len(line) < 1000 and len({m.lower() for m in _SIZE.findall(line)}) >= _SIZES:
            return
        self.fenced ^= line.lstrip().startswith("```")
        if block is None and not self.tokens and _COUNTED.search(line[:200]) and (ids := ids_of_line(line)):
            self.tokens = ids
            return
        if block is None and (self._more_ids(line) or self._listed_below(line)):
            return
        if block is None and self._at_token(line):
            return
        outer = self.context
        fresh = _CELL.fullmatch(line)
        self.context = HeadingStack(possible_row=outer.possible_row) if fresh else outer.at(line)
        if block is None and (
            self._read_prompt(line) or self._read_habit(line, where) or self._read_table_header(line)
        ):
            return
        statements = self._statements(line, block)
        new: list[Observation] = []
        before = self.tokens
        for statement in statements:
            statement.items = with_ids(with_title(statement.items, self.context, self.titles), self.context)
            self.tokens = self.tokens or statement.tokens
            if not statement.empty:
                new += observations_of(statement, self.context, where)
        self.open_ids = 0 if before or "[" in line else len(self.tokens)
        statement = statements[0] if statements else Statement()
        if block is None and statement.doubts.met:
            new = self._with_second_reading(line, statement, new, where)
        if any(o.name for o in new):
            self._after_values(line, block, statement, new)
        else:
            self._after_other(line, statement, new, where, outer)
        if (len(statement.label) > 12 or statement.tokens) and (
            row := row_of(split_words(statement.label), set())
        ) is not None:
            self.context = replace(self.context, possible_row=row)  # prose, or beside the tokens
        self.sides |= {s for s in (statement.side, self.context.side) if s}

    def _with_statistic(self, line: str) -> str:
        """The line with the statistic of the title above before each number that stands behind a name."""
        m = _NAMED_RUN.fullmatch(line) if self.titles and len(line) < 1000 else None
        if m is None or statistic(_NAMED_NUMBER.findall(m[2])[0][:1]):
            return line
        kind = title_statistic(list(self.titles)[-1:])
        return m[1] + _NAMED_NUMBER.sub(rf"\1 {kind}=\2 | ", m[2]) if kind else line

    def _with_second_reading(
        self, line: str, statement: Statement, new: list[Observation], where: str
    ) -> list[Observation]:
        """The observations; the first one carries those of the second reading, for the values to choose."""
        if not new or not new[0].name or new[0].kind in ("at", "top"):
            return new
        known = self.context.subject.layer is not None
        again = parse_line(lex(line), self.sides, known, second=frozenset(statement.doubts.met))
        again.items = with_ids(with_title(again.items, self.context, self.titles), self.context)
        others = tuple(o for o in observations_of(again, self.context, where) if o.name)
        return [replace(new[0], alternatives=others), *new[1:]]

    def _read_prompt(self, line: str) -> bool:
        """Keep a quoted prompt. A log without token ids is read with the ids of this text."""
        matched = _PROMPT.fullmatch(line)
        if matched is not None and not self.prompt:
            self.prompt = next(text for text in matched.groups() if text)
        return matched is not None

    def _read_habit(self, line: str, where: str) -> bool:
        matched = by_habit(self.patterns, line, self.context, where)
        if matched is None:
            return False
        self.found += matched[0]
        self.tokens = self.tokens or matched[1]
        return True

    def _step(self, line: str) -> int | None:
        """The token of a decode step whose heading this line is: by its words, or with the next position."""
        if (token := step_of(line)) is not None:
            return token
        place = self.decoding.place(line)
        if place is not None and self.found and self.tokens and place[0] == len(self.tokens) + len(self.steps):
            return place[1]
        call = call_of(line, len(self.tokens) + len(self.steps))
        if call is None:
            return None
        ids, past = call
        if not self.tokens and not self.found and past == 0:
            self.tokens = ids
        next_one = len(ids) == 1 and self.found and past == len(self.tokens) + len(self.steps)
        return ids[0] if next_one else None

    def _more_ids(self, line: str) -> bool:
        """Ids that go on in the next line, indented: as many as in the line before, or fewer."""
        ids = [int(n) for n in line.split()] if self.open_ids and _WHOLE.fullmatch(line) else []
        if not ids or len(ids) > self.open_ids or ids == list(range(len(ids))):
            return False
        self.tokens = (*self.tokens, *ids)
        self.open_ids = self.open_ids if len(ids) == self.open_ids else 0
        return True

    def _listed_below(self, line: str) -> bool:
        """Whole numbers below a line that calls them tokens or positions, as a debugger prints them."""
        m = _LISTED.fullmatch(line) if self.caption is not None and len(line) < 100_000 else None
        words = set(split_words(self.caption[1].label)) if m and self.caption else set()
        found = tuple(int(n) for n in re.findall(r"\d{1,7}", m[1])) if m else ()
        if found and words & _OF_THE_ENGINE:  # argmax per token
            return True
        if words & {"pos", "position", "positions"} and found == tuple(range(found[0], found[0] + len(found))):
            self.positions = found if found[0] else ()
            return True
        if not words & {"token", "tokens", "ids"} or words & {"expert", "experts"} or self.tokens:
            return False
        self.tokens = found
        return True

    def _at_token(self, line: str) -> bool:
        """A heading "token #2 (id 99)": the row is certain, if the third id is 99; behind the prompt it is a step."""
        m = _TOKEN.search(line) if len(line) < 200 and not _DECIMAL.search(line) else None
        at, token = (-1, -1) if m is None else (int(m[1]), int(m[2]))
        if (place := self.decoding.place(line)) is not None:
            at, token = place
        if 0 < at == len(self.tokens) + len(self.steps) and self.found:
            self.steps.append((token, len(self.found), len(self.unread)))
        elif not 0 <= at < len(self.tokens) or self.tokens[at] != token:
            return False
        row = Meaning(row=at) if at < len(self.tokens) else Meaning()
        self.context = HeadingStack(side=self.context.side).entering(row, (), 0)
        self.table, self.caption = PrintedTable(), None
        return True

    def _read_table_header(self, line: str) -> bool:
        header = with_index(self.table, line) if self.table.columns and not self.nth else None
        header = header or table_header(line)
        if header is None:
            return False
        self.table, self.nth, self.layer = replace(header, kind=title_statistic(self.titles)), 0, None
        return True

    def _statements(self, line: str, block: Block | None) -> list[Statement]:
        """The statements of a line. A caption above values without words becomes their heading."""
        timed = self.caption is not None and _says_no_values(self.caption[1].label)
        if block is not None:
            title = self.caption[0] if self.caption else self.titles[-1] if self.titles else ""
            self._take_caption()
            return [] if timed else block_statements(block, self.context, len(self.tokens), title)
        statements = self._table_row(line)
        if not statements:
            statements = [parse_line(lex(line), self.sides, layer_known=self.context.subject.layer is not None)]
        if self.caption and not statements[0].empty and _without_words(statements[0]):
            self._take_caption()
            return [] if timed else statements
        return statements

    def _take_caption(self) -> None:
        if self.caption:
            self.context = heading(*self.caption, self.context, self.sides, caption=True)

    def _table_row(self, line: str) -> list[Statement]:
        if not self.nth and self.table.columns and len(line) < 4096 and any(c.isdigit() for c in line):
            self.table = aligned(self.table, line)
        rows = table_row(self.table, line, self.nth)
        if rows and not self.nth:
            self.ignored += unread_columns(self.table)
        self.nth += bool(rows)
        for cells in rows:
            if cells.fed is not None and cells.row is not None:
                self.decoding.fed.setdefault(cells.row, cells.fed)
        for cells in rows if "layer" in self.table.columns else ():
            self.layer = self.layer if cells.layer is None else cells.layer
            cells.layer = self.layer if "" in cells.label else cells.layer  # an empty cell: the one above
        return rows

    def _after_values(self, line: str, block: Block | None, statement: Statement, new: Sequence[Observation]) -> None:
        """Keep observations of named nodes, and update the headings for the lines below."""
        self.found += [o for o in new if o.name]
        # Statistics of a named node, and then its values: `>>> hidden mean=0.1 std=1.0`, below it `tensor([[…`.
        self.caption = (line, statement) if block is None and all(o.kind in STATISTICS for o in new) else None
        last = next(o.name for o in reversed(new) if o.name)
        self.context = replace(self.context, fresh=False, last_node=last.rpartition("-")[0])
        if block is None and not self.table.columns:
            self.context = _below(statement, self.context)
        _remember(line, new, self.context)

    def _after_other(
        self, line: str, statement: Statement, new: Sequence[Observation], where: str, outer: HeadingStack
    ) -> None:
        """A line without a named node: keep its values for matching, or read it as a heading."""
        if new and self.kept < _MAX_UNREAD:
            self.unread += new
            self.kept += sum(max(len(o.printed), 1) for o in new)
        if not statement.empty and not statement.tokens and len(self.unexplained) < _MAX_UNEXPLAINED:
            self.unexplained.append((where, line.strip()[:300]))
        if statement.empty and line.strip(" -=+|"):
            self.titles.append(line[:400])
        comment = self.fenced and line.lstrip().startswith("#")  # in code: no heading
        if comment or statement.tokens or new:
            return
        before = self.context
        self.context = heading(line, statement, before, self.sides)
        changed = self.context.sections != before.sections
        self.table = PrintedTable() if changed else self.table
        if self.context == before and _LETTER.search(line):
            self.context = outer  # no heading: the sections above stay open
        if line.strip():
            self.caption = None if changed else (line, statement)
        if kind := statistic_of_each_token(split_words(statement.label)):
            each = EachToken(kind, indent_of(line), line.rstrip()[-1:] in ("{", "[", "("))
            self.context = replace(self.context, of_each_token=each)


def _below(statement: Statement, context: HeadingStack) -> HeadingStack:
    """A line with values may set the row for the lines below ("pos 3: |emb|=1.5") or their layer ("In layer 0, …")."""
    own = meaning(statement.label)
    if own.layer is not None and statement.label[0].lower() in ("in", "at", "for", "inside"):
        return context.entering(replace(context.subject, nodes=("l_out-",), layer=own.layer, bare=True), (), 0)
    leads = own.row is not None and row_of(split_words(statement.label[:3]), set()) == own.row
    if not leads or own.layer is not None:
        return context
    return context.with_subject(replace(context.subject, row=own.row))


def _says_no_values(label: Sequence[str]) -> bool:
    """Whether the numbers below are times, or of weights or gradients: no values of the node of an earlier heading."""
    words = set(split_words(label))
    return bool(words & TIMES) or bool(words & NOT_VALUES and not meaning([*label, "layer", "0"], generic=False).role)


def _without_words(statement: Statement) -> bool:
    """Whether the statement has values but no words for them."""
    return all(w == VALUES or w.isdecimal() or w.lower() in _OF_AN_ARRAY for w in statement.label)


def _remember(line: str, new: Sequence[Observation], context: HeadingStack) -> None:
    """Remember which node was assigned to a variable (`xb2 <- wo * xb`), because a later sum may add it."""
    if (m := _PUT.match(line) or _PUT_BEHIND.search(line[:400])) and len(context.variables) < 64:
        context.variables[m[1]] = new[0].name.rpartition("-")[0]
