// Text files beside a message: chosen, dropped or pasted; sent as text in a fence that they cannot close.

import { $, make, toast } from "./dom.js";
import { icon } from "./icons.js";
import { bytes } from "./models.js";

const LARGEST = 400_000; // bytes
let files = []; // {name, text}

export const attached = () => files;

function draw() {
  $("files").hidden = !files.length;
  $("files").replaceChildren(...files.map((file, i) => make("li", { class: "chip" }, make("span", {}, file.name), make("small", {}, bytes(file.text.length)),
    make("button", { type: "button", class: "icon", "aria-label": `Remove ${file.name}`, onclick: () => { files.splice(i, 1); draw(); $("input").focus(); } }, icon("cross")))));
}

export function clearFiles() { files = []; draw(); }

async function read(file) {
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

// What a message with files says to the model.
export function contentOf({ content, files: kept }) {
  if (!kept?.length) return content;
  return [content, ...kept.map(({ name, text }) => {
    let longest = 2;
    for (const run of text.match(/`+/g) ?? []) longest = Math.max(longest, run.length);
    const fence = "`".repeat(longest + 1);
    return `${name}:\n${fence}\n${text}\n${fence}`;
  })].filter(Boolean).join("\n\n");
}

export const chips = (kept) => make("ul", { class: "attached", "aria-label": "Attached files" }, ...kept.map(({ name, text }) =>
  make("li", {}, make("details", { class: "chip" }, make("summary", {}, `${name}, ${bytes(text.length)}`), make("pre", { tabindex: 0 }, text)))));

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
