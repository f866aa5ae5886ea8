// Markdown as elements: headings, lists, quotes, tables, code that can be copied, emphasis, links. Text only ever enters
// the page as text, and a link leads to the web or nowhere.

import { make } from "./dom.js";

const INLINE = /(`+)([\s\S]*?[^`])\1(?!`)|\*\*([^*][\s\S]*?)\*\*|__([^_][\s\S]*?)__|\*([^*\s][^*]*?)\*|\b_([^_\s][^_]*?)_\b|~~([^~]+)~~|\[([^\]]+)\]\(([^()\s]+)\)|(https?:\/\/[^\s<>()]+)/;

function link(text, address) {
  if (!/^https?:\/\//.test(address)) return make("span", {}, text);
  return make("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, text);
}

function inline(text) {
  const out = [];
  for (let rest = text; rest;) {
    const found = INLINE.exec(rest);
    if (!found) { out.push(rest); break; }
    if (found.index) out.push(rest.slice(0, found.index));
    const [whole, , code, strong, strong2, em, em2, gone, label, address, bare] = found;
    if (code !== undefined) out.push(make("code", {}, code));
    else if (strong ?? strong2) out.push(make("strong", {}, ...inline(strong ?? strong2)));
    else if (em ?? em2) out.push(make("em", {}, ...inline(em ?? em2)));
    else if (gone) out.push(make("s", {}, ...inline(gone)));
    else if (label) out.push(link(label, address));
    else out.push(link(bare, bare));
    rest = rest.slice(found.index + whole.length);
  }
  return out;
}

function code(text, language) {
  const copy = make("button", { type: "button", class: "copy", "aria-label": "Copy code", onclick: async () => {
    try { await navigator.clipboard.writeText(text); copy.textContent = "Copied"; } catch { copy.textContent = "Cannot copy"; }
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  } }, "Copy");
  const head = make("div", { class: "codehead" }, make("span", {}, language || "text"), copy);
  return make("div", { class: "code" }, head, make("pre", { tabindex: 0 }, make("code", {}, text)));
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
const RULE = /^\s*\|?\s*:?-{2,}:?\s*(\|\s*:?-{2,}:?\s*)*\|?\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;

// Lines of a list, from `at`: nested by their indentation.
function list(lines, at) {
  const [, indent, mark] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(mark);
  const element = make(ordered ? "ol" : "ul", ordered && parseInt(mark, 10) !== 1 ? { start: parseInt(mark, 10) } : {});
  while (at < lines.length) {
    const found = ITEM.exec(lines[at]);
    if (!found || found[1].length < indent.length) break;
    if (found[1].length > indent.length) {
      const [inner, next] = list(lines, at);
      (element.lastElementChild ?? element).append(inner);
      at = next;
      continue;
    }
    const item = make("li", {}, ...inline(found[3]));
    element.append(item);
    for (at += 1; at < lines.length && lines[at].trim() && !ITEM.test(lines[at]); at += 1) item.append(" ", ...inline(lines[at].trim()));
  }
  return [element, at];
}

export function markdown(text) {
  const out = document.createDocumentFragment();
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = /^\s*(```+|~~~+)\s*([\w+#.-]*)/.exec(line);
    const heading = /^(#{1,6})\s+(.*?)\s*#*$/.exec(line);
    if (!line.trim()) at += 1;
    else if (fence) {
      const body = [];
      for (at += 1; at < lines.length && !lines[at].trim().startsWith(fence[1]); at += 1) body.push(lines[at]);
      at += 1;
      out.append(code(body.join("\n"), fence[2]));
    } else if (heading) {
      out.append(make(`h${Math.min(heading[1].length + 2, 6)}`, {}, ...inline(heading[2])));
      at += 1;
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      out.append(make("hr"));
      at += 1;
    } else if (/^\s*>/.test(line)) {
      const body = [];
      for (; at < lines.length && /^\s*>/.test(lines[at]); at += 1) body.push(lines[at].replace(/^\s*> ?/, ""));
      out.append(make("blockquote", {}, markdown(body.join("\n"))));
    } else if (ITEM.test(line)) {
      const [element, next] = list(lines, at);
      out.append(element);
      at = next;
    } else if (line.includes("|") && RULE.test(lines[at + 1] ?? "")) {
      const row = (kind, text) => make("tr", {}, ...cells(text).map((cell) => make(kind, {}, ...inline(cell))));
      const body = make("tbody");
      const head = make("thead", {}, row("th", line));
      for (at += 2; at < lines.length && lines[at].includes("|"); at += 1) body.append(row("td", lines[at]));
      out.append(make("div", { class: "scroll", tabindex: 0 }, make("table", {}, head, body)));
    } else {
      const body = [];
      const ends = (text) => !text.trim() || /^\s*(```|~~~|>|#{1,6}\s)/.test(text) || ITEM.test(text);
      do { body.push(lines[at]); at += 1; } while (at < lines.length && !ends(lines[at]));
      const paragraph = make("p");
      body.forEach((text, i) => { if (i) paragraph.append(make("br")); paragraph.append(...inline(text.trimEnd())); });
      out.append(paragraph);
    }
  }
  return out;
}
