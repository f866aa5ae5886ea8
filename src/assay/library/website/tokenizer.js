// The tokenizer of an exported model: pair merging over bytes (gpt2) or over characters (llama, SentencePiece).
// Its ids are those of the Python package; tests/library/test_website.py compares them.

const SPACE = "\u2581";
const WHITE = " \t\n\v\f\r";
const KIND = { unknown: 2, control: 4, user: 8, byte: 32, lstrip: 64, rstrip: 128 };
const SPECIAL = KIND.unknown | KIND.control | KIND.user;
const HIDDEN = KIND.unknown | KIND.control;

/** GPT-2's printable character for every byte. */
function byteAlphabet() {
  const printable = (b) => (b >= 0x21 && b < 0x7f) || (b >= 0xa1 && b < 0xad) || (b >= 0xae && b < 0x100);
  let next = 0x100;
  return Array.from({ length: 256 }, (_, b) => String.fromCharCode(printable(b) ? b : next++));
}

const BYTE_TO_CHAR = byteAlphabet();
const CHAR_TO_BYTE = new Map(BYTE_TO_CHAR.map((c, b) => [c, b]));
const utf8 = new TextEncoder();

/** Join the adjacent pair of the lowest rank, the leftmost of equals, until no pair has a rank. */
function merge(parts, rankOf) {
  const pairs = [];
  for (let i = 0; i + 1 < parts.length; i++) pairs.push(rankOf(parts[i], parts[i + 1]));
  for (;;) {
    let best = Infinity;
    let at = -1;
    for (let i = 0; i < pairs.length; i++) {
      if (pairs[i] < best) {
        best = pairs[i];
        at = i;
      }
    }
    if (at < 0) return parts;
    parts.splice(at, 2, parts[at] + parts[at + 1]);
    pairs.splice(at, 1);
    if (at < pairs.length) pairs[at] = rankOf(parts[at], parts[at + 1]);
    if (at) pairs[at - 1] = rankOf(parts[at - 1], parts[at]);
  }
}

/** Characters outside ASCII as one placeholder of their category, so that expressions need no Unicode tables. */
class Collapse {
  constructor(runs) {
    this.first = runs.map((run) => run[0]); // ascending code points at which another placeholder begins
    this.shown = runs.map((run) => run[1]);
  }

  /** A copy with one UTF-16 unit for each character of `characters`. */
  of(characters) {
    return characters.map((c) => (c.codePointAt(0) < 128 ? c : this.placeholder(c.codePointAt(0)))).join("");
  }

  placeholder(code) {
    let low = 0;
    let high = this.first.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.first[middle] <= code) low = middle;
      else high = middle;
    }
    return this.shown[low] || String.fromCodePoint(code);
  }
}

export class Tokenizer {
  constructor(data) {
    this.data = data;
    this.tokens = data.tokens;
    this.ids = new Map(data.tokens.map((text, id) => [text, id]));
    this.kinds = data.kinds;
    this.cache = new Map();
    if (data.model === "llama") {
      const rank = new Map(data.tokens.map((text, id) => [text, data.ranks[id]]));
      this.rankOf = (a, b) => rank.get(a + b) ?? Infinity;
    } else {
      const rank = new Map();
      data.merges.forEach((pair, i) => rank.has(pair) || rank.set(pair, i));
      this.rankOf = (a, b) => rank.get(`${a} ${b}`) ?? Infinity;
      this.splits = data.splits.map(([expression, runs]) => [new RegExp(expression, "g"), new Collapse(runs)]);
    }
    const special = [];
    data.tokens.forEach((text, id) => {
      if (text && this.kinds[id] & SPECIAL) special.push([utf8.encode(text).length, id, text]);
    });
    special.sort((a, b) => b[0] - a[0] || a[1] - b[1]);
    this.special = special;
  }

  /** The ids of a rendered conversation: BOS once, if the text begins with it or the file requires it. */
  encodeChat(text) {
    const ids = this.encode(text, false);
    const bos = this.data.bos;
    if (bos === null) return ids;
    let start = 0;
    while (start < ids.length && ids[start] === bos) start++;
    return [...(start > 0 || this.data.add_bos ? [bos] : []), ...ids.slice(start)];
  }

  encode(text, addSpecial = true) {
    const ids = addSpecial ? [...this.data.first] : [];
    let afterSpecial = true;
    for (const fragment of this.fragments(text)) {
      if (typeof fragment === "number") {
        ids.push(fragment);
        afterSpecial = true;
        continue;
      }
      const spaced = this.data.space_prefix && afterSpecial ? ` ${fragment}` : fragment;
      afterSpecial = false;
      for (const id of this.data.model === "llama" ? this.scored(spaced) : this.words(spaced)) ids.push(id);
    }
    if (addSpecial) ids.push(...this.data.last);
    return ids;
  }

  /** The text split at its special tokens: the longest token first, over the whole text. */
  fragments(text) {
    let parts = text ? [text] : [];
    for (const [, id, token] of this.special) {
      if (!text.includes(token)) continue;
      const next = [];
      for (const part of parts) {
        if (typeof part === "number") {
          next.push(part);
          continue;
        }
        let rest = part;
        for (let at = rest.indexOf(token); at >= 0; at = rest.indexOf(token)) {
          let before = rest.slice(0, at);
          rest = rest.slice(at + token.length);
          while (this.kinds[id] & KIND.lstrip && before && WHITE.includes(before.at(-1))) before = before.slice(0, -1);
          while (this.kinds[id] & KIND.rstrip && rest && WHITE.includes(rest[0])) rest = rest.slice(1);
          if (before) next.push(before);
          next.push(id);
        }
        if (rest) next.push(rest);
      }
      parts = next;
    }
    return parts;
  }

  /** Byte-level merging of the pre-tokenizer's words. */
  *words(text) {
    let words = [Array.from(text)];
    for (const [expression, collapse] of this.splits) words = words.flatMap((word) => cut(word, expression, collapse));
    for (const word of words) {
      const key = word.join("");
      let ids = this.cache.get(key);
      if (!ids) this.cache.set(key, (ids = this.word(key)));
      yield* ids;
    }
  }

  word(word) {
    const text = Array.from(utf8.encode(word), (b) => BYTE_TO_CHAR[b]);
    if (this.data.ignore_merges && this.ids.has(text.join(""))) return [this.ids.get(text.join(""))];
    return merge(text, this.rankOf).flatMap((part) => {
      if (this.ids.has(part)) return [this.ids.get(part)];
      return Array.from(part).filter((c) => c < "\x80" && this.ids.has(c)).map((c) => this.ids.get(c));
    });
  }

  /** SentencePiece: merge the pair that makes the token of the highest score; byte tokens for the rest. */
  scored(text) {
    const parts = merge(Array.from(text.replaceAll(" ", SPACE)), this.rankOf);
    return parts.flatMap((part) => (this.ids.has(part) ? [this.ids.get(part)] : this.bytes(part)));
  }

  bytes(part) {
    return Array.from(utf8.encode(part), (b) => {
      const name = `<0x${b.toString(16).toUpperCase().padStart(2, "0")}>`;
      return this.ids.get(name) ?? (b < 128 ? this.ids.get(String.fromCharCode(b)) : undefined) ?? this.data.unk;
    });
  }

  /** The bytes of a token, which may be a part of a character. */
  piece(id) {
    const text = this.tokens[id];
    const kind = this.kinds[id];
    if (kind & SPECIAL) return utf8.encode(text);
    if (kind & KIND.byte) return Uint8Array.of(parseInt(text.slice(3, 5), 16));
    if (!(kind & 1)) return new Uint8Array();
    if (this.data.model === "llama") return utf8.encode(text.replaceAll(SPACE, " "));
    return Uint8Array.from(Array.from(text).flatMap((c) => (CHAR_TO_BYTE.has(c) ? [CHAR_TO_BYTE.get(c)] : [...utf8.encode(c)])));
  }

  isHidden(id) {
    return Boolean(this.kinds[id] & HIDDEN);
  }
}

/** Every match of the expression is a word, and the text between two matches too. */
function cut(characters, expression, collapse) {
  const shown = collapse.of(characters);
  const words = [];
  let last = 0;
  for (const match of shown.matchAll(expression)) {
    if (match.index > last) words.push(characters.slice(last, match.index));
    if (match[0].length) words.push(characters.slice(match.index, match.index + match[0].length));
    last = match.index + match[0].length;
  }
  if (last < characters.length) words.push(characters.slice(last));
  return words;
}

/** Streaming text of ids: a character is held back until its last byte. */
export class Detokenizer {
  constructor(tokenizer) {
    this.tokenizer = tokenizer;
    this.decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  }

  push(id) {
    return this.tokenizer.isHidden(id) ? "" : this.decoder.decode(this.tokenizer.piece(id), { stream: true });
  }

  flush() {
    return this.decoder.decode();
  }
}
