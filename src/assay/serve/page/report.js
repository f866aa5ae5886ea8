// A diagnosis or a comparison: what to fix, the map of layers and operations, the values behind a cell, the evidence.
// The page's Diagnose view imports this file; a written report contains it, with figures.js and nodemap.js.

import { count, make, off, percent, some, times, words } from "./figures.js";
import { detail, map } from "./nodemap.js";

// --- copying

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // no permission: in a frame, or over plain HTTP
    const field = make("textarea", { readonly: true, class: "offscreen" });
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
}

function copyButton(text, what) {
  const button = make("button", { type: "button", class: "copy", "aria-label": `Copy ${what}` }, "Copy");
  button.addEventListener("click", async () => {
    await copy(text);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1600);
  });
  return button;
}

// --- what to do: the first thing that is read

function lead(kind, title, text, ...more) {
  const plain = String(text).replaceAll("`", "");
  const head = make("div", { class: "lead-head" }, make("h2", {}, title), copyButton(plain, title.toLowerCase()));
  return make("article", { class: `lead ${kind}` }, head, make("p", { class: "do" }, ...words(text)), ...more);
}

function leads(data) {
  const many = data.causes.length > 1;
  const found = data.causes.map((cause, i) => {
    const number = many ? ` ${i + 1} of ${data.causes.length}` : "";
    const guess = cause.title === "cause" ? "" : ", a best guess";
    return lead("wrong", `Fix${number}${guess}`, cause.fix || cause.right, make("p", {}, ...words(cause.wrong)));
  });
  if (data.broken) {
    const why = make("p", {}, ...words(data.broken.words));
    found.unshift(lead("wrong", data.broken.sure ? "Fix" : "Fix, a best guess", data.broken.fix, why));
  }
  if (!found.length && data.next) found.push(lead("ask", "Next", data.next));
  const first = data.nodes.find((node) => node.name === data.first);
  if (!found.length && data.wrong && first) {
    const formula = make("p", {}, make("code", {}, first.formula));
    const where = make("p", { class: "soft" }, ...words("`assay diagnose` looks for the known mistake that gives these values."));
    found.push(lead("wrong", "Look here first", first.name, make("p", {}, `${first.said}; ${off(first.nmse)}.`), formula, where));
  }
  if (!found.length && !data.wrong) {
    found.push(make("article", { class: "lead fine" }, make("div", { class: "lead-head" }, make("h2", {}, "Nothing to fix")), make("p", { class: "do" }, data.headline)));
  }
  return make("section", { class: "leads", "aria-label": "What to do" }, ...found);
}

// --- the evidence for each cause

function rows(list) {
  return make("dl", {}, ...list.flatMap(([name, ...said]) => [make("dt", {}, name), make("dd", {}, ...said)]));
}

function explains(share) {
  const bar = make("span", { class: "share", role: "img", "aria-label": percent(share) }, make("i"));
  bar.firstChild.style.width = `${100 * share}%`;
  return [bar, ` ${percent(share)} of the deviation`];
}

function cause(data, c, i) {
  const list = [
    ["right", ...words(c.right)],
    ["found as", c.how],
    ["at", some(c.nodes)],
    ["evidence", `${times(c.deviation_before)} the noise; ${c.deviation_after < 0.01 ? "nothing of it is left" : times(c.deviation_after)} once this mistake is planted in the definition`],
    ["explains", ...explains(c.explains)],
    ["confidence", percent(c.confidence) + (c.equivalent.length ? `; the same values as ${c.equivalent.join(", ")}` : "")],
  ];
  if (c.otherwise) list.push(["if it is not that", ...words(c.otherwise)]);
  if (c.links.length) list.push(["seen in", ...c.links.flatMap(([text, address], j) => [j ? ", " : "", make("a", { href: address, rel: "noreferrer" }, text)])]);
  const looks = Object.entries(c.look_for).map(([language, line]) =>
    make("figure", {}, make("figcaption", {}, language), make("pre", {}, make("code", {}, line))));
  const title = `${data.causes.length > 1 ? `Cause ${i + 1}` : "Cause"}: `;
  return make("article", { class: "cause" },
    make("h2", {}, title, make("code", {}, c.fault), make("span", { class: "soft" }, ` · ${c.stage}`)),
    looks.length ? make("h3", {}, "The mistake looks like this") : null, ...looks,
    make("h3", {}, "Why this one"), rows(list));
}

function rest(data) {
  const found = [];
  if (data.unexplained.length) {
    const said = data.relations.length ? data.relations.join("; ") : "No known mistake and no simple relation gives these values";
    found.push(make("article", { class: "cause" }, make("h2", {}, "Unexplained"), make("p", {}, some(data.unexplained)), make("p", {}, ...words(`${said}.`))));
  }
  if (data.next && data.causes.length) found.push(make("article", { class: "cause" }, make("h2", {}, "Next"), make("p", {}, ...words(data.next))));
  if (data.notes.length) found.push(make("article", { class: "cause" }, make("h2", {}, "Notes"), make("ul", {}, ...data.notes.map((note) => make("li", {}, ...words(note))))));
  return found;
}

// --- all of it

// `heading` is the level of the headline: the page has a first-level heading already.
export function render(data, root, heading = "h2") {
  const box = make("aside", { id: "detail", "aria-live": "polite", "aria-label": "The chosen operation" });
  const drawn = map(data, (node) => detail(box, node));
  const nothing = make("p", { class: "soft" }, data.tokens.length ? "Nothing was observed." : "Only answers were seen, so there is no map of operations. A dump shows one.");
  const facts = !data.tokens.length ? data.title : `${data.title} · engine ${data.engine || "unknown"} · ${count(data.tokens.length, "token")} in steps of ${data.steps.join(", ") || "–"} · arithmetic ${data.arithmetic || "unknown"} · ${count(data.nodes.length, "node")} observed`;
  root.replaceChildren(make("div", { class: "report" },
    make("div", { class: "head" }, make(heading, { class: "headline" }, make("span", { class: `verdict ${data.wrong ? "bad" : "good"}`, id: "verdict" }, data.verdict), " ", make("span", { id: "headline" }, ...words(data.headline)))),
    leads(data),
    make("section", { class: "map", "aria-label": "Map of layers and operations" },
      data.nodes.length ? [make("p", { class: "told" }, data.told), drawn.legend, make("div", { class: "board" }, drawn.element, box)] : nothing),
    make("section", { class: "causes", "aria-label": "Evidence" }, ...data.causes.map((c, i) => cause(data, c, i)), ...rest(data)),
    make("p", { class: "foot soft" }, facts)));
  drawn.open();
}
