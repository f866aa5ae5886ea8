// Inline Markdown as a tree: emphasis, code, links, entities, mathematics. No document is needed, so Node can test it.
//
// Time is linear in the text. Each kind of mark is looked for once: `Next` remembers where the next one stands, backtick
// runs are indexed by length, an emphasis search never passes the same delimiter twice, a bracket ends a link's address.

import { delimiter, pair } from "./emphasis.js";
import { bareEnd, destination, entity, safe } from "./links.js";
import { tex } from "./math.js";
import { node } from "./tree.js";

const DEPTH = 20; // nested emphasis; deeper marks are dropped, so that no tree is too deep to walk
const LONGEST_MATH = 4000;
const PLAIN = /[^\\`$<&![\]*_~h\n]+/y;
const SPACE = /\s/;
const PUNCTUATION = /[\p{P}\p{S}]/u;
// Where a mark stands next. Asked with positions that never fall.
class Next {
  constructor(text, mark) { Object.assign(this, { text, mark, at: -1 }); }
  from(at) {
    if (this.at < at) {
      const found = this.text.indexOf(this.mark, at);
      this.at = found < 0 ? Infinity : found;
    }
    return this.at;
  }
}

// From the start of each run of backticks to the start of the next run of the same length.
function pairs(text) {
  const closes = new Map(), later = new Map(), runs = [];
  for (let at = text.indexOf("`"); at >= 0; at = text.indexOf("`", at)) {
    const start = at;
    while (text[at] === "`") at += 1;
    runs.push([start, at - start]);
  }
  for (const [start, length] of runs.reverse()) {
    if (later.has(length)) closes.set(start, later.get(length));
    later.set(length, start);
  }
  return closes;
}

class Scanner {
  constructor(text) {
    this.text = text;
    this.items = []; // strings, nodes, delimiters, {link}, {end}
    this.brackets = []; // {item, delimiters}
    this.inactive = 0; // brackets below this index hold a link already
    this.delimiters = [];
    this.next = {};
    this.codes = null;
  }

  find(mark, at) { return (this.next[mark] ??= new Next(this.text, mark)).from(at); }

  // Each of these takes what begins at `at` and gives where it ends.
  escape(at) {
    const c = this.text[at + 1];
    if (c === "(" || c === "[") {
      const end = this.find(c === "(" ? "\\)" : "\\]", at + 2);
      if (end - at < LONGEST_MATH) return this.math(at + 2, end, c === "[", end + 2);
    }
    if (c === "\n") { this.items.push(node("br")); return at + 2; }
    if (c !== undefined && c < "\x7f" && PUNCTUATION.test(c)) { this.items.push(c); return at + 2; }
    this.items.push("\\");
    return at + 1;
  }

  math(from, to, display, end) {
    this.items.push(tex(this.text.slice(from, to), display));
    return end;
  }

  code(at) {
    const { text } = this;
    this.codes ??= pairs(text);
    let start = at;
    while (text[start] === "`") start += 1;
    const end = this.codes.get(at);
    if (end === undefined) { this.items.push(text.slice(at, start)); return start; }
    let inner = text.slice(start, end).replaceAll("\n", " ");
    if (inner.startsWith(" ") && inner.endsWith(" ") && inner.trim()) inner = inner.slice(1, -1);
    this.items.push(node("code", {}, [inner]));
    return end + start - at;
  }

  dollar(at) {
    const { text } = this;
    if (text[at + 1] === "$") {
      const end = this.find("$$", at + 2);
      if (end > at + 2 && end - at < LONGEST_MATH) return this.math(at + 2, end, true, end + 2);
      this.items.push("$$");
      return at + 2;
    }
    const end = this.find("$", at + 1);
    const fits = end - at < LONGEST_MATH && end > at + 1 && !SPACE.test(text[at + 1]) && !SPACE.test(text[end - 1]) &&
      text[end - 1] !== "\\" && !(text[end + 1] >= "0" && text[end + 1] <= "9");
    if (fits) return this.math(at + 1, end, false, end + 1);
    this.items.push("$");
    return at + 1;
  }

  angle(at) {
    const { text } = this;
    const close = this.find(">", at + 1);
    if (close - at < 2000 && this.find("<", at + 1) > close) {
      const inner = text.slice(at + 1, close);
      if (/^br ?\/?$/i.test(inner)) { this.items.push(node("br")); return close + 1; }
      if (safe(inner)) { this.items.push(node("a", { href: inner }, [inner])); return close + 1; }
    }
    this.items.push("<");
    return at + 1;
  }

  bare(at) {
    const { text } = this;
    const boundary = at === 0 || !/[\p{L}\p{N}]/u.test(text[at - 1]);
    if (boundary && (text.startsWith("https://", at) || text.startsWith("http://", at))) {
      const end = bareEnd(text, at);
      const address = text.slice(at, end);
      if (address.length > 8) { this.items.push(node("a", { href: address }, [address])); return end; }
    }
    this.items.push("h");
    return at + 1;
  }

  open(at, length) {
    this.brackets.push({ item: this.items.length, delimiters: this.delimiters.length });
    this.items.push(this.text.slice(at, at + length));
    return at + length;
  }

  close(at) {
    const opener = this.brackets.pop();
    const found = opener && this.brackets.length >= this.inactive ? destination(this.text, at + 1) : null;
    this.inactive = Math.min(this.inactive, this.brackets.length);
    if (!found) { this.items.push("]"); return at + 1; }
    pair(this.delimiters.splice(opener.delimiters));
    const address = safe(found[0]);
    this.items[opener.item] = { link: address };
    this.items.push({ end: true });
    this.inactive = this.brackets.length;
    return found[1];
  }

  run(at) {
    const found = delimiter(this.text, at);
    if (found.mark === "~" && found.count !== 2) this.items.push(this.text.slice(at, at + found.count));
    else { this.items.push(found); this.delimiters.push(found); }
    return at + found.size;
  }

  scan() {
    const { text } = this;
    for (let at = 0; at < text.length;) {
      PLAIN.lastIndex = at;
      const plain = PLAIN.exec(text);
      if (plain) { this.items.push(plain[0]); at = PLAIN.lastIndex; continue; }
      at = this.special(text[at], at);
    }
    pair(this.delimiters);
    return this.items;
  }

  special(c, at) {
    switch (c) {
      case "\\": return this.escape(at);
      case "`": return this.code(at);
      case "$": return this.dollar(at);
      case "<": return this.angle(at);
      case "h": return this.bare(at);
      case "[": return this.open(at, 1);
      case "]": return this.close(at);
      case "\n": this.items.push(node("br")); return at + 1;
      case "&": {
        const found = entity(this.text, at);
        this.items.push(found ? found[0] : "&");
        return found ? found[1] : at + 1;
      }
      case "!":
        if (this.text[at + 1] === "[") return this.open(at, 2);
        this.items.push("!");
        return at + 1;
      default: return this.run(at);
    }
  }
}

// Items as a tree. Marks below DEPTH, a link in a link and a link to nowhere leave their text.
class Builder {
  constructor() { this.stack = [{ kids: [] }]; this.links = 0; }
  get kids() { return this.stack.at(-1).kids; }

  text(text) {
    const { kids } = this;
    if (!text) return;
    if (typeof kids.at(-1) === "string") kids[kids.length - 1] += text;
    else kids.push(text);
  }

  open(tag, attrs = {}) {
    if (tag && this.stack.length <= DEPTH) {
      const made = node(tag, attrs);
      this.kids.push(made);
      this.stack.push(made);
    } else this.stack.push({ kids: this.kids });
  }

  add(item) {
    if (typeof item === "string") this.text(item);
    else if (item.mark) {
      for (const _ of item.closes) this.stack.pop();
      this.text(item.mark.repeat(item.count));
      for (let i = item.opens.length - 1; i >= 0; i -= 1) this.open(item.opens[i]);
    } else if ("link" in item) {
      this.open(item.link && !this.links ? "a" : null, { href: item.link });
      this.links += 1;
    } else if (item.end) { this.stack.pop(); this.links -= 1; }
    else if (item.tag === "a" && this.links) this.text(item.kids[0]);
    else this.kids.push(item);
  }
}

export function inline(text) {
  const builder = new Builder();
  for (const item of new Scanner(text).scan()) builder.add(item);
  return builder.stack[0].kids;
}
