// Addresses and entities in Markdown: each function reads what begins at a position and says where it ends.

const SPACE = /\s/;
const ENTITY = /&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-zA-Z]{2,8}));/y;
const ENTITIES = {
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", reg: "®", hellip: "…", mdash: "—", ndash: "–",
  times: "×", divide: "÷", deg: "°", plusmn: "±", larr: "←", rarr: "→", uarr: "↑", darr: "↓", le: "≤", ge: "≥", ne: "≠",
  bull: "•", middot: "·", laquo: "«", raquo: "»", euro: "€", pound: "£", frac12: "½", infin: "∞", pi: "π", alpha: "α", beta: "β",
};

export const safe = (address) => (/^(?:https?:\/\/|mailto:)[^\s]+$/i.test(address) ? address : null);

// "(address)" or "(address "title")" at `at`: [address, end], or null. A bracket ends the search, so searches do not overlap.
export function destination(text, at) {
  if (text[at] !== "(") return null;
  let depth = 0, end = at + 1;
  for (; end < text.length; end += 1) {
    const c = text[end];
    if (c === "[" || c === "]" || c === "<" || SPACE.test(c)) break;
    if (c === "(") depth += 1;
    else if (c === ")" && depth-- === 0) return [text.slice(at + 1, end), end + 1];
  }
  const address = text.slice(at + 1, end);
  while (text[end] === " ") end += 1;
  const quote = text[end];
  if (quote !== '"' && quote !== "'") return null;
  for (end += 1; end < text.length && text[end] !== quote; end += 1) if (text[end] === "[" || text[end] === "]") return null;
  return text[end] === quote && text[end + 1] === ")" ? [address, end + 2] : null;
}

const TRAILING = new Set([".", ",", ";", ":", "!", "?", "'", '"', "*", "_", "~"]);

// The end of a bare address: punctuation at its end belongs to the sentence.
export function bareEnd(text, at) {
  let end = at, open = 0;
  for (; end < text.length; end += 1) {
    const c = text[end];
    if (c === "<" || c === ">" || c === "`" || c === "]" || c === "[" || c === '"' || c === "|" || SPACE.test(c)) break;
    if (c === "(") open += 1;
    else if (c === ")" && open-- === 0) break;
  }
  while (end > at && TRAILING.has(text[end - 1])) end -= 1;
  return end;
}

export function entity(text, at) {
  ENTITY.lastIndex = at;
  const found = ENTITY.exec(text);
  if (!found) return null;
  if (found[3]) return Object.hasOwn(ENTITIES, found[3]) ? [ENTITIES[found[3]], ENTITY.lastIndex] : null;
  const code = found[1] ? parseInt(found[1], 10) : parseInt(found[2], 16);
  const good = code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
  return [good ? String.fromCodePoint(code) : "\ufffd", ENTITY.lastIndex];
}
