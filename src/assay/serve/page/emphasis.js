// Runs of *, _ and ~~: which of them open and close emphasis. CommonMark's rules, in linear time.

const SPACE = /\s/;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const TAGS = { "*1": "em", "*2": "strong", _1: "em", _2: "strong", "~2": "s" };


// A run at `at`: its length, and what its neighbours let it do.
export function delimiter(text, at) {
  const mark = text[at];
  let end = at;
  while (text[end] === mark) end += 1;
  const before = at ? text[at - 1] : " ", after = end < text.length ? text[end] : " ";
  const left = !SPACE.test(after) && (!PUNCTUATION.test(after) || SPACE.test(before) || PUNCTUATION.test(before));
  const right = !SPACE.test(before) && (!PUNCTUATION.test(before) || SPACE.test(after) || PUNCTUATION.test(after));
  const within = mark === "_";
  return {
    mark, count: end - at, size: end - at, opens: [], closes: [],
    canOpen: left && (!within || !right || PUNCTUATION.test(before)),
    canClose: right && (!within || !left || PUNCTUATION.test(after)),
  };
}

// Pair the delimiters of a list. `floor` keeps, for each kind of closer, below which none can be: nothing is searched twice.
export function pair(list) {
  list.forEach((d, i) => { d.before = i - 1; d.after = i + 1; });
  const floor = new Map();
  const drop = (i) => {
    const { before, after } = list[i];
    if (before >= 0) list[before].after = after;
    if (after < list.length) list[after].before = before;
  };
  for (let at = 0; at < list.length;) {
    const closer = list[at];
    if (!closer.canClose) { at = closer.after; continue; }
    const kind = `${closer.mark}${closer.canOpen}${closer.size % 3}`;
    const lowest = floor.get(kind) ?? -1;
    let from = closer.before;
    for (; from > lowest; from = list[from].before) {
      const d = list[from];
      if (d.mark !== closer.mark || !d.canOpen) continue;
      const odd = (d.canClose || closer.canOpen) && (d.size + closer.size) % 3 === 0 && (d.size % 3 || closer.size % 3);
      if (!odd || closer.mark === "~") break;
    }
    if (from <= lowest) {
      floor.set(kind, closer.before);
      const next = closer.after;
      if (!closer.canOpen) drop(at);
      at = next;
      continue;
    }
    const opener = list[from];
    const used = opener.count > 1 && closer.count > 1 ? 2 : 1;
    const tag = TAGS[closer.mark + used];
    for (let i = opener.after; i !== at; i = list[i].after) drop(i);
    opener.count -= used;
    closer.count -= used;
    if (tag) { opener.opens.push(tag); closer.closes.push(tag); }
    if (!opener.count) drop(from);
    if (!closer.count) { const next = closer.after; drop(at); at = next; }
  }
}
