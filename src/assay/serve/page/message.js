// One message: its text, its files, and what can be done with it as icons.

import { chips } from "./attach.js";
import { make, probabilities } from "./dom.js";
import { icon } from "./icons.js";
import { copyButton, markdown } from "./markdown.js";
import { siblings } from "./store.js";

const words = (node) => (node.raw ? node.content : markdown(node.content));

export const thoughtOf = (text) => {
  const inner = make("div", { class: "reasoning" }, text);
  return [make("details", { class: "thought", open: true }, make("summary", {}, "Thinking"), inner), inner];
};

// actions: edit(node, body), regenerate(node), tokens(node), turn(node), busy()
export function bubble(talk, node, actions) {
  const body = make("div", { class: "body" });
  const article = make("article", { class: `message ${node.role}${node.raw ? " raw" : ""}`, "aria-label": node.role === "user" ? "You" : "Answer" },
    make("h2", { class: "hidden" }, node.role === "user" ? "You" : "Answer"));
  if (node.files?.length) article.append(chips(node.files));
  if (node.reasoning) article.append(thoughtOf(node.reasoning)[0]);
  article.append(body);
  if (node.fault) { article.classList.add("fault"); body.textContent = node.fault; }
  else if (node.role === "assistant") body.append(words(node));
  else body.textContent = node.content;
  article.append(...tools(talk, node, body, actions));
  return article;
}

function tools(talk, node, body, actions) {
  const row = make("div", { class: "tools" });
  const button = (sign, label, onclick, attributes = {}) => {
    const made = make("button", { type: "button", "aria-label": label, title: label, onclick, ...attributes, class: `icon ${attributes.class ?? ""}` }, icon(sign));
    row.append(made);
    return made;
  };
  const others = siblings(talk, node);
  if (others.length > 1) {
    const at = others.indexOf(node);
    const turn = (step) => () => { if (!actions.busy()) actions.turn(others[at + step]); };
    button("left", "Previous version", turn(-1), { disabled: at === 0 });
    row.append(make("span", { class: "branch" }, `${at + 1} of ${others.length}`));
    button("right", "Next version", turn(1), { disabled: at === others.length - 1 });
  }
  if (node.content) row.append(copyButton(node.content, node.role === "user" ? "Copy message" : "Copy answer"));
  if (node.role === "user") { button("edit", "Edit", () => actions.edit(node, body), { class: "edit" }); return [row]; }
  button("again", "Regenerate", () => actions.regenerate(node), { class: "regenerate" });
  if (node.tokens?.length) {
    button("shade", "Probabilities in the text", (event) => {
      const on = event.currentTarget.getAttribute("aria-pressed") !== "true";
      event.currentTarget.setAttribute("aria-pressed", String(on));
      body.replaceChildren(on ? probabilities(node.tokens) : words(node));
    }, { "aria-pressed": "false", class: "inline" });
    button("tokens", "Open in Tokens", () => actions.tokens(node), { class: "to-tokens" });
  }
  return [row, ...figures(row, node)];
}

// One figure that opens the others.
function figures(row, node) {
  const { usage, speed, first, reason } = node.figures ?? {};
  const rows = node.figures ? [
    ["Prompt", usage && `${usage.prompt} tokens, ${usage.cached} of them cached`],
    ["Answer", `${usage?.answer ?? node.tokens?.length ?? 0} tokens`],
    ["Speed", speed && `${speed.toFixed(1)} tokens/s`],
    ["First token", first && `after ${first.toFixed(2)} s`],
    ["Ended", reason],
    ["Model", node.model],
  ].filter(([, value]) => value) : (node.facts ?? []).map((fact) => ["", fact]);
  if (!rows.length) return [];
  const list = make("dl", { class: "figures", hidden: true }, ...rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
  const label = speed ? `${speed < 10 ? speed.toFixed(1) : speed.toFixed(0)} tok/s` : reason ?? "figures";
  row.append(make("button", { type: "button", class: "speed", "aria-expanded": "false", title: "Figures of this answer", onclick: (event) => {
    list.hidden = !list.hidden;
    event.currentTarget.setAttribute("aria-expanded", String(!list.hidden));
    if (!list.hidden) list.scrollIntoView({ block: "nearest" }); // the last answer's lie below the edge
  } }, label));
  if (reason === "stopped" || reason === "length") row.append(make("span", {}, reason === "length" ? "· cut at the limit" : "· stopped"));
  return [list];
}
