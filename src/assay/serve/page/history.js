// The list of conversations: search, open, rename, delete with undo. On a phone it is a sheet.

import { $, make, toast } from "./dom.js";
import { icon } from "./icons.js";
import * as store from "./store.js";

const DAY = 86_400_000;
let actions = null; // current(), show(conversation), renamed(conversation), here(): whether the chat is open

const group = (changed) => {
  const midnight = new Date().setHours(0, 0, 0, 0);
  return changed >= midnight ? "Today" : changed >= midnight - DAY ? "Yesterday" : changed >= midnight - 7 * DAY ? "This week" : "Earlier";
};

function row(talk) {
  const here = talk.id === actions.current().id;
  const title = talk.title || "Untitled";
  const open = make("button", { type: "button", class: "open", "aria-current": here ? "true" : null, title, onclick: () => choose(talk.id) }, make("span", {}, title));
  const item = make("li", { class: here ? "talk current" : "talk", "data-id": talk.id }, open, make("div", { class: "acts" },
    make("button", { type: "button", class: "icon rename", "aria-label": `Rename ${title}`, title: "Rename", onclick: () => rename(talk, item) }, icon("edit")),
    make("button", { type: "button", class: "icon delete", "aria-label": `Delete ${title}`, title: "Delete", onclick: () => remove(talk) }, icon("trash"))));
  return item;
}

async function choose(id) {
  closeDrawer();
  const talk = await store.get(id);
  if (talk) actions.show(talk);
}

function rename(entry, item) {
  const field = make("input", { "aria-label": "New title", maxlength: 200 });
  field.value = entry.title;
  let done = false;
  const finish = async (keep) => {
    if (done) return;
    done = true;
    const talk = keep && field.value.trim() ? await store.get(entry.id) : null;
    if (talk) {
      talk.title = field.value.trim();
      actions.renamed(talk);
      await store.put(talk);
    }
    await list();
    document.querySelector(`.talk[data-id="${CSS.escape(entry.id)}"] .open`)?.focus();
  };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") finish(true);
    if (event.key === "Escape") { event.stopPropagation(); event.preventDefault(); finish(false); }
  });
  field.addEventListener("blur", () => finish(true));
  item.replaceChildren(field);
  field.focus();
  field.select();
}

async function remove({ id }) {
  const talk = await store.get(id);
  if (!talk) return;
  await store.remove(id);
  if (id === actions.current().id) actions.show((await store.newest()) ?? store.fresh());
  await list();
  $("search").focus();
  toast(`Deleted “${(talk.title || "Untitled").slice(0, 40)}”`, "Undo", async () => { await store.put(talk); await list(); actions.show(talk); });
}

export async function list() {
  const wanted = $("search").value.trim().toLowerCase();
  const found = (await store.titles()).filter((talk) => !wanted || talk.title.toLowerCase().includes(wanted) || talk.text.includes(wanted));
  const groups = new Map();
  for (const talk of found) {
    const name = group(talk.changed);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(row(talk));
  }
  const parts = [...groups].flatMap(([name, rows]) => [make("h2", {}, name), make("ul", { "aria-label": name }, ...rows)]);
  $("conversations").replaceChildren(...(parts.length ? parts : [make("p", { class: "none" }, wanted ? "No conversation has these words." : "Conversations appear here. They stay in this browser.")]));
}

const small = matchMedia("(max-width: 800px)");

function closeDrawer() { if ($("drawer").open) $("drawer").close(); }

function toggle() {
  if (small.matches || !actions.here()) {
    $("drawer").append($("history"));
    $("drawer").showModal();
  } else $("chat").classList.toggle("narrow");
}

export function startHistory(given) {
  actions = given;
  $("menu").addEventListener("click", toggle);
  $("drawer").addEventListener("close", () => $("aside").append($("history")));
  small.addEventListener("change", closeDrawer);
  $("search").addEventListener("input", list);
  $("clear").addEventListener("click", () => { closeDrawer(); actions.show(store.fresh()); $("input").focus(); });
}
