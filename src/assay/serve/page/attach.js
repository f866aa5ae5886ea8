// Files beside a message: chosen, dropped or pasted. Texts are sent in a fence that they cannot close, pictures as data URLs.

import { $, make, toast } from "./dom.js";
import { icon } from "./icons.js";
import { post } from "./api.js";
import { bytes, modelName } from "./models.js";

const LARGEST = 400_000; // bytes of a text
const LARGEST_PICTURE = 15_000_000;
let files = []; // {name, text}, or of a picture {name, url, size, tokens}

const sizeOf = ({ text, size, tokens }) => bytes(text === undefined ? size : text.length) + (tokens ? `, ${tokens} tokens` : "");
const picture = ({ name, url }) => make("img", { src: url, alt: name });

export const attached = () => files;

function draw() {
  $("files").hidden = !files.length;
  $("files").replaceChildren(...files.map((file, i) => make("li", { class: "chip" }, ...(file.url ? [picture(file)] : []), make("span", {}, file.name), make("small", {}, sizeOf(file)),
    make("button", { type: "button", class: "icon", "aria-label": `Remove ${file.name}`, onclick: () => { files.splice(i, 1); draw(); $("input").focus(); } }, icon("cross")))));
}

// Rows that a picture becomes, which the server counts without computing them. A model without a tower has no answer.
async function count(file) {
  try {
    const content = [{ type: "image_url", image_url: { url: file.url } }];
    const { tokens } = await post("/apply-template", { model: modelName(), messages: [{ role: "user", content }] });
    file.tokens = tokens.filter((id) => id < 0).length;
    draw();
  } catch { /* the question itself says what is wrong */ }
}

export function clearFiles() { files = []; draw(); }

const dataUrl = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(file);
});

async function read(file) {
  if (file.type.startsWith("image/")) {
    if (file.size > LARGEST_PICTURE) return `${file.name}: too large (found ${bytes(file.size)}, at most ${bytes(LARGEST_PICTURE)})`;
    files.push({ name: file.name || "picture", url: await dataUrl(file), size: file.size });
    count(files.at(-1));
    return null;
  }
  if (file.size > LARGEST) return `${file.name}: too large (found ${bytes(file.size)}, at most ${bytes(LARGEST)})`;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (text.includes("\0")) throw new TypeError();
    files.push({ name: file.name, text });
    return null;
  } catch {
    return `${file.name}: is not a text file (UTF-8)`;
  }
}

export async function addFiles(list) {
  const faults = (await Promise.all([...list].map(read))).filter(Boolean);
  draw();
  if (faults.length) toast(faults[0]);
  $("input").focus();
}

// What a message with files says to the model: a text; with pictures, parts in OpenAI's form. A base model gets the text.
export function contentOf({ content, files: kept, raw }) {
  const said = textOf(content, (kept ?? []).filter(({ url }) => !url));
  const pictures = raw ? [] : (kept ?? []).filter(({ url }) => url);
  if (!pictures.length) return said;
  return [...pictures.map(({ url }) => ({ type: "image_url", image_url: { url } })), { type: "text", text: said }];
}

function textOf(content, kept) {
  if (!kept.length) return content;
  return [content, ...kept.map(({ name, text }) => {
    let longest = 2;
    for (const run of text.match(/`+/g) ?? []) longest = Math.max(longest, run.length);
    const fence = "`".repeat(longest + 1);
    return `${name}:\n${fence}\n${text}\n${fence}`;
  })].filter(Boolean).join("\n\n");
}

export const chips = (kept) => make("ul", { class: "attached", "aria-label": "Attached files" }, ...kept.map((file) => file.url ? make("li", {}, picture(file)) :
  make("li", {}, make("details", { class: "chip" }, make("summary", {}, `${file.name}, ${sizeOf(file)}`), make("pre", { tabindex: 0 }, file.text)))));

export function startAttaching() {
  $("attach").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", async () => { await addFiles($("file").files); $("file").value = ""; });
  $("input").addEventListener("paste", (event) => {
    if (event.clipboardData.files.length) { event.preventDefault(); addFiles(event.clipboardData.files); }
  });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    $("chat").addEventListener(kind, (event) => {
      event.preventDefault();
      $("chat").classList.toggle("over", kind === "dragover");
      if (kind === "drop") addFiles(event.dataTransfer.files);
    });
  }
}
