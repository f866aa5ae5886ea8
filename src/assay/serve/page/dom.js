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

export function remember(key, value) {
  try {
    if (value === undefined) return localStorage.getItem(key);
    localStorage.setItem(key, value);
  } catch { /* private windows keep nothing */ }
  return null;
}

// One tooltip: on hover, on focus, and on a touch until the next one elsewhere.
const tip = $("tip");
document.addEventListener("pointerdown", () => { tip.hidden = true; }, { capture: true });

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
  const hide = (event) => { if (event.pointerType !== "touch") tip.hidden = true; };
  element.addEventListener("pointerenter", (event) => { if (event.pointerType !== "touch") show(); });
  element.addEventListener("click", show);
  element.addEventListener("focus", show);
  element.addEventListener("pointerleave", hide);
  element.addEventListener("blur", hide);
  return element;
}

// One of the elements is reached by Tab; arrow keys move between them.
export function roving(container, selector) {
  const all = () => [...container.querySelectorAll(selector)];
  const first = all()[0];
  if (first) first.tabIndex = 0;
  container.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const found = all();
    const at = found.indexOf(document.activeElement);
    if (!step || at < 0) return;
    event.preventDefault();
    const next = found[Math.max(0, Math.min(at + step, found.length - 1))];
    found[at].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  };
}

// How strongly a token of this probability is tinted: what is nearly sure has no colour.
export const doubt = (p) => (p >= 0.9 ? 0 : Math.min(1, (0.9 - p) / 0.8)).toFixed(2);

// A generated token as it stands in the text, tinted by doubt; its alternatives on pointing at it.
export function token(item) {
  const p = Math.exp(item.logprob);
  const element = make("span", { class: "prob", role: "listitem", tabindex: -1, "aria-label": `${visible(item.token)}, ${percent(p)}` }, item.token || "∅");
  element.style.setProperty("--doubtful", doubt(p));
  return withTip(element, () => options(item));
}

// What else a token could have been.
export function options(item) {
  const items = item.top_logprobs.map((t) => ({ text: t.token, p: Math.exp(t.logprob), id: t.id }));
  if (!items.some((t) => t.id === item.id)) items.push({ text: item.token, p: Math.exp(item.logprob), id: item.id });
  return bars(items, item.id);
}

export function probabilities(tokens) {
  const list = make("div", { class: "probs", role: "list", "aria-label": "Tokens" }, ...tokens.map(token));
  roving(list, ".prob");
  return list;
}

// Alternatives as bars: text, share, probability. The one that was taken is marked.
export function bars(items, chosen) {
  const found = make("div", { class: "bars" });
  for (const { text, p, id } of items) {
    const bar = make("i");
    bar.style.setProperty("--p", p.toFixed(3));
    found.append(make("b", { class: id === chosen ? "taken" : null, title: `token ${id}` }, visible(text)), bar, make("span", {}, percent(p)));
  }
  return found;
}

// Something that scrolls sideways: while its right end is out of sight, `box` has the class "cut".
export function fading(scroller, box = scroller) {
  const cut = () => box.classList.toggle("cut", scroller.scrollWidth - scroller.clientWidth - scroller.scrollLeft > 2);
  scroller.addEventListener("scroll", cut, { passive: true });
  new ResizeObserver(cut).observe(scroller);
  return box;
}

// A line at the foot of the page with one thing to do about it.
let forgotten = 0;
export function toast(text, label, action) {
  const close = () => $("toast").replaceChildren();
  clearTimeout(forgotten);
  const sheet = document.querySelector("dialog[open]"); // what is behind an open sheet cannot be reached
  (sheet ?? document.querySelector("main")).append($("toast"));
  sheet?.addEventListener("close", () => document.querySelector("main").append($("toast")), { once: true });
  $("toast").replaceChildren(make("div", { class: "toast" }, make("span", {}, text),
    ...(label ? [make("button", { type: "button", onclick: () => { close(); action(); } }, label)] : [])));
  forgotten = setTimeout(close, 8000);
}
