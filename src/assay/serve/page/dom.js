// Small helpers. Text only ever enters the page as text.

export const $ = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// What cannot be seen is shown as a sign.
export const visible = (text) =>
  text === "" ? "∅" : text.replace(/ /g, "·").replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/[\x00-\x1f\x7f]/g, "␦");

export const percent = (p) => (p >= 0.9995 ? "100 %" : p < 0.001 ? "<0.1 %" : `${(100 * p).toFixed(1)} %`);

// One tooltip for every element with a `tip` function, on hover and on focus.
const tip = $("tip");

export function withTip(element, content) {
  const show = () => {
    tip.replaceChildren(content());
    tip.hidden = false;
    const box = element.getBoundingClientRect();
    const own = tip.getBoundingClientRect();
    const left = Math.max(6, Math.min(box.left, innerWidth - own.width - 6));
    const below = box.bottom + 6;
    tip.style.left = `${left}px`;
    tip.style.top = `${below + own.height > innerHeight ? Math.max(6, box.top - own.height - 6) : below}px`;
  };
  const hide = () => { tip.hidden = true; };
  element.addEventListener("pointerenter", show);
  element.addEventListener("focus", show);
  element.addEventListener("pointerleave", hide);
  element.addEventListener("blur", hide);
  return element;
}

// A generated token as it stands in the text, coloured by its probability; its alternatives on pointing at it.
export function token(item) {
  const p = Math.exp(item.logprob);
  const element = make("span", { class: "prob", tabindex: 0, "aria-label": `${item.token}, ${percent(p)}` }, item.token || "∅");
  element.style.setProperty("--p", p.toFixed(3));
  return withTip(element, () => options(item));
}

// What else a token could have been.
export function options(item) {
  const items = item.top_logprobs.map((t) => ({ text: t.token, p: Math.exp(t.logprob), id: t.id }));
  if (!items.some((t) => t.id === item.id)) items.push({ text: item.token, p: Math.exp(item.logprob), id: item.id });
  return alternatives(items, item.id);
}

export const probabilities = (tokens) => make("div", { class: "probs" }, ...tokens.map(token));

// Rows of a token's alternatives: text, probability, id.
export function alternatives(items, chosen) {
  const table = make("table");
  for (const { text, p, id } of items) {
    const row = make("tr", {}, make("td", {}, visible(text)), make("td", {}, percent(p)), make("td", {}, `#${id}`));
    if (id === chosen) row.append(make("td", {}, "◀"));
    table.append(row);
  }
  return table;
}
