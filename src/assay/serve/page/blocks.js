// Markdown blocks as a tree: headings, lists, quotes, tables, code, mathematics, paragraphs. Needs no document.
//
// Time is linear in the text: every line is read once at each level, and levels end at DEPTH. A block depends only on its
// own lines and the two after it, so that a growing text is final up to its last block.

import { inline } from "./inline.js";
import { tex } from "./math.js";
import { node } from "./tree.js";

const DEPTH = 10; // quotes and lists inside each other; deeper ones are text
const COLUMNS = 64;
const HEADING = /^(#{1,6})(?:[ \t]|$)/;
const ITEM = /^(?:([-*+])|(\d{1,9})[.)])(?=[ \t]|$)/;
const MATH = { "$$": "$$", "\\[": "\\]" };

const indentOf = (line) => {
  let width = 0;
  for (const c of line) {
    if (c === " ") width += 1;
    else if (c === "\t") width += 4 - (width % 4);
    else break;
  }
  return width;
};

// A line without so many columns of its indentation.
function strip(line, columns) {
  let at = 0;
  for (let width = 0; width < columns && (line[at] === " " || line[at] === "\t"); at += 1) width += line[at] === " " ? 1 : 4 - (width % 4);
  return line.slice(at);
}

// The mark and the language of a line that opens a code block.
function fenceOf(text) {
  if (!text.startsWith("```") && !text.startsWith("~~~")) return null;
  let end = 3;
  while (text[end] === text[0]) end += 1;
  const rest = text.slice(end).trim();
  return text[0] === "`" && rest.includes("`") ? null : { mark: text.slice(0, end), language: rest.split(" ", 1)[0] };
}

function isRule(text) {
  const mark = text[0];
  if (mark !== "-" && mark !== "*" && mark !== "_") return false;
  let count = 0;
  for (const c of text) {
    if (c === mark) count += 1;
    else if (c !== " " && c !== "\t") return false;
  }
  return count >= 3;
}

function cells(line) {
  const found = [];
  let cell = "", text = line.trim();
  if (text.startsWith("|")) text = text.slice(1);
  for (let at = 0; at < text.length; at += 1) {
    if (text[at] === "\\" && text[at + 1] === "|") { cell += "|"; at += 1; }
    else if (text[at] === "|") {
      found.push(cell.trim());
      cell = "";
      if (found.length === COLUMNS) return found;
    } else cell += text[at];
  }
  if (cell.trim()) found.push(cell.trim());
  return found;
}

// How the columns of a table stand, if this is the line between its head and body.
function columns(line) {
  if (!line?.includes("-") || !/^[\s|:-]+$/.test(line)) return null;
  const found = cells(line).map((cell) => {
    const inner = cell.slice(cell.startsWith(":") ? 1 : 0, cell.length > 1 && cell.endsWith(":") ? -1 : undefined);
    if (!inner || inner.replaceAll("-", "")) return null;
    return cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "left";
  });
  return found.length && !found.includes(null) ? found : null;
}

const isTable = (line, next) => line.includes("|") && columns(next) !== null && cells(line).length === columns(next).length;

const isTitle = (line) => { const text = line.trim(); return text.startsWith("===") && !text.replaceAll("=", ""); };

// Whether a line begins a block of its own inside a paragraph.
const begins = (text, next) => fenceOf(text) || text[0] === ">" || HEADING.test(text) || isRule(text) || ITEM.test(text) ||
  Object.hasOwn(MATH, text.slice(0, 2)) || isTable(text, next);

class Parser {
  constructor(lines, depth) { Object.assign(this, { lines, depth, at: 0 }); }

  all() {
    const nodes = [], starts = [];
    while (this.at < this.lines.length) {
      const text = this.lines[this.at].trim();
      if (!text) { this.at += 1; continue; }
      starts.push(this.at);
      nodes.push(this.block(text));
    }
    return { nodes, starts };
  }

  inner(lines) { return new Parser(lines, this.depth + 1).all().nodes; }

  block(text) {
    const fence = fenceOf(text);
    if (fence) return this.code(fence);
    const heading = HEADING.exec(text);
    if (heading) return this.heading(heading[1].length, text);
    if (isRule(text)) { this.at += 1; return node("hr"); }
    if (text[0] === ">" && this.depth < DEPTH) return this.quote();
    if (ITEM.test(text) && this.depth < DEPTH) return this.list();
    if (Object.hasOwn(MATH, text.slice(0, 2))) return this.math(text.slice(0, 2));
    if (isTable(text, this.lines[this.at + 1])) return this.table();
    return this.paragraph();
  }

  code({ mark, language }) {
    const indent = indentOf(this.lines[this.at]);
    const body = [];
    let closed = false;
    for (this.at += 1; this.at < this.lines.length && !closed; this.at += 1) {
      const line = this.lines[this.at];
      const text = line.trim();
      closed = text.length >= mark.length && text.startsWith(mark) && !text.replaceAll(mark[0], "");
      if (!closed) body.push(strip(line, indent));
    }
    return node("pre", { language, open: !closed }, [body.join("\n")]);
  }

  heading(level, text) {
    let end = text.length;
    while (end > level && text[end - 1] === "#") end -= 1;
    if (text[end - 1] !== " " && text[end - 1] !== "\t") end = text.length;
    this.at += 1;
    return node(`h${Math.min(level + 2, 6)}`, {}, inline(text.slice(level, end).trim()));
  }

  quote() {
    const body = [];
    for (; this.at < this.lines.length; this.at += 1) {
      const text = this.lines[this.at].trimStart();
      if (text[0] !== ">") break;
      body.push(text.slice(text[1] === " " ? 2 : 1));
    }
    return node("blockquote", {}, this.inner(body));
  }

  list() {
    const kind = ITEM.exec(this.lines[this.at].trim());
    const first = indentOf(this.lines[this.at]);
    const start = kind[2] === undefined ? 1 : parseInt(kind[2], 10);
    const element = node(kind[1] ? "ul" : "ol", start === 1 ? {} : { start });
    while (this.at < this.lines.length) {
      const line = this.lines[this.at];
      const text = line.trim();
      const found = ITEM.exec(text);
      const indent = indentOf(line);
      if (!found || found[1] !== kind[1] || indent >= first + 2 || isRule(text)) break;
      element.kids.push(this.item(text, found[0].length, indent));
      this.blanks();
    }
    return element;
  }

  // Blank lines before a further item belong to the list, others do not.
  blanks() {
    let next = this.at;
    while (next < this.lines.length && !this.lines[next].trim()) next += 1;
    if (next < this.lines.length && ITEM.test(this.lines[next].trim())) this.at = next;
  }

  item(text, mark, indent) {
    const body = [text.slice(mark).trimStart()];
    let blank = false, fenced = fenceOf(body[0]) !== null;
    for (this.at += 1; this.at < this.lines.length; this.at += 1) {
      const line = this.lines[this.at];
      const inner = line.trim();
      if (!inner) { blank = true; body.push(""); continue; }
      const deeper = indentOf(line) >= indent + 2;
      if (!deeper && (blank || fenced || begins(inner, this.lines[this.at + 1]))) break;
      if (fenceOf(inner)) fenced = !fenced;
      body.push(strip(line, deeper ? indent + Math.min(mark + 1, 4) : indent));
      blank = false;
    }
    while (body.length > 1 && !body.at(-1)) body.pop();
    this.at -= blank ? this.trailing() : 0;
    const task = /^\[([ xX])\] /.exec(body[0]);
    if (task) body[0] = `${task[1] === " " ? "☐" : "☑"} ${body[0].slice(4)}`;
    const kids = this.inner(body);
    return node("li", {}, kids[0]?.tag === "p" ? [...kids[0].kids, ...kids.slice(1)] : kids);
  }

  // Blank lines just passed: they are looked at again, by the list.
  trailing() {
    let count = 0;
    while (!this.lines[this.at - 1 - count].trim()) count += 1;
    return count;
  }

  math(mark) {
    const body = [];
    for (; this.at < this.lines.length; this.at += 1) {
      const text = this.lines[this.at].trim();
      if (!text) break;
      const end = text.indexOf(MATH[mark], body.length ? 0 : 2);
      body.push(text);
      if (end < 0) continue;
      this.at += 1;
      const whole = body.join("\n");
      const alone = end + 2 === text.length && whole.length < 8000;
      return node("p", {}, alone ? [tex(whole.slice(2, -2), true)] : inline(whole));
    }
    return node("p", {}, inline(body.join("\n")));
  }

  table() {
    const align = columns(this.lines[this.at + 1]);
    const row = (kind, line) => node("tr", {}, cells(line).slice(0, align.length).map((cell, i) => node(kind, { class: align[i] }, inline(cell))));
    const head = node("thead", {}, [row("th", this.lines[this.at])]);
    const body = node("tbody");
    for (this.at += 2; this.at < this.lines.length && this.lines[this.at].includes("|"); this.at += 1) body.kids.push(row("td", this.lines[this.at]));
    return node("table", {}, [head, body]);
  }

  paragraph() {
    const body = [];
    do {
      body.push(this.lines[this.at].trim());
      this.at += 1;
    } while (this.at < this.lines.length && this.lines[this.at].trim() && !this.ends());
    if (body.length === 1 && isTitle(this.lines[this.at] ?? "")) { this.at += 1; return node("h3", {}, inline(body[0])); }
    return node("p", {}, inline(body.join("\n")));
  }

  ends() {
    const text = this.lines[this.at].trim();
    return begins(text, this.lines[this.at + 1]) || isTitle(text);
  }
}

// The nodes of a text's lines, and the line on which each begins.
export const parseLines = (lines) => new Parser(lines.map((line) => (line.endsWith("\r") ? line.slice(0, -1) : line)), 0).all();
export const parse = (text) => parseLines(text.split("\n")).nodes;
