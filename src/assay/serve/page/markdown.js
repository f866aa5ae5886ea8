// Markdown in the page. Trees become elements here and nowhere else: tags and attributes are of the lists below, text is
// only ever text, and a link leads to the web or nowhere.

import { parse } from "./blocks.js";
import { fading, make } from "./dom.js";
import { Growing } from "./growing.js";
import { highlight } from "./highlight.js";
import { icon } from "./icons.js";
import { safe } from "./links.js";
import { ATTRIBUTES, MATH_TAGS, TAGS } from "./tree.js";

const MATHML = "http://www.w3.org/1998/Math/MathML";
const FOLD = 32; // lines of code; longer blocks open on request

function element(tree) {
  if (typeof tree === "string") return document.createTextNode(tree);
  const { tag, attrs, kids } = tree;
  if (tag === "pre") return code(kids[0], attrs.language);
  if (tag === "math" && attrs.display) return fading(make("span", { class: "formula", tabindex: 0, role: "group", "aria-label": "Formula" }, plain(tree)));
  if (tag === "table") return make("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Table" }, plain(tree));
  return plain(tree);
}

function plain({ tag, attrs, kids }) {
  const math = MATH_TAGS.has(tag);
  if (!math && !TAGS.has(tag)) return document.createTextNode("");
  const made = math ? document.createElementNS(MATHML, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attrs)) {
    if (ATTRIBUTES.has(name) && value !== undefined && (name !== "href" || safe(value))) made.setAttribute(name, value);
  }
  if (tag === "a") { made.target = "_blank"; made.rel = "noopener noreferrer"; }
  made.append(...kids.map(element));
  return made;
}

export function copyButton(text, label) {
  const button = make("button", { type: "button", class: "icon copy", "aria-label": label, title: label, onclick: async () => {
    let done = true;
    try { await navigator.clipboard.writeText(typeof text === "function" ? text() : text); } catch { done = false; }
    button.replaceChildren(icon(done ? "check" : "cross"));
    button.setAttribute("aria-label", done ? "Copied" : "Cannot copy");
    setTimeout(() => { button.replaceChildren(icon("copy")); button.setAttribute("aria-label", label); }, 1500);
  } }, icon("copy"));
  return button;
}

// Code with its language and a copy button. Where a line is cut at the right, or a long block below, it fades.
function code(text, language) {
  const pre = make("pre", { tabindex: 0, role: "group", "aria-label": language ? `Code, ${language}` : "Code" }, make("code", {}, ...highlight(text, language).map(element)));
  const box = make("div", { class: "code" }, make("div", { class: "codehead" }, make("span", {}, language || "text"), copyButton(text, "Copy code")), pre);
  fading(pre, box);
  const lines = text.split("\n").length;
  if (lines > FOLD) {
    box.classList.add("folded");
    box.append(make("button", { type: "button", class: "unfold", onclick: (event) => { box.classList.remove("folded"); event.currentTarget.remove(); pre.focus(); } }, `Show all ${lines} lines`));
  }
  return box;
}

// Headings below that of the message, none of them a level skipped, however the model wrote them.
function headings(nodes, above) {
  for (const node of nodes) {
    if (typeof node === "string") continue;
    const level = /^h([3-6])$/.exec(node.tag)?.[1];
    if (level) node.tag = `h${above.level = Math.min(Number(level), above.level + 1)}`;
    else headings(node.kids, above);
  }
  return nodes;
}

export function markdown(text) {
  const out = document.createDocumentFragment();
  out.append(...headings(parse(text), { level: 2 }).map(element));
  return out;
}

// Text that arrives piece by piece, drawn into an element: push(text), end().
export function growing(body) {
  let tail = []; // elements that the next push may replace
  const clear = () => { for (const old of tail) old.remove(); tail = []; };
  return new Growing({
    settle: (nodes) => { clear(); body.append(...nodes.map(element)); },
    tail: (nodes) => { clear(); tail = nodes.map(element); body.append(...tail); },
    append: (text) => {
      const last = tail.at(-1);
      const place = last?.querySelector?.("pre code") ?? last;
      if (place?.append) place.append(text);
    },
  });
}
