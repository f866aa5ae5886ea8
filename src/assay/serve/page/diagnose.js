// Somebody's dump or log lines: sent as a stream, with progress while it is examined, and then the report.

import { upload } from "./api.js";
import { $, make } from "./dom.js";
import { render } from "./report.js";

const zone = $("drop");
let file = null; // what was dropped or chosen
let running = null; // aborts the diagnosis under way

const size = (bytes) => (bytes < 1e6 ? `${(bytes / 1e3).toFixed(0)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);

function take(chosen) {
  if (!chosen) return;
  file = chosen;
  $("lines").value = "";
  $("lines").hidden = $("lines-label").hidden = true; // the file stands in their place
  const back = make("button", { type: "button", id: "undrop", onclick: forget }, "Remove");
  $("dropped").replaceChildren(make("strong", {}, chosen.name), ` ${size(chosen.size)} `, back);
  $("dropped").hidden = false;
  $("diagnose-note").textContent = "";
}

function forget() {
  file = null;
  $("dump").value = "";
  $("lines").hidden = $("lines-label").hidden = false;
  $("dropped").hidden = true;
  $("lines").focus();
}

// What is under way, and how far it is. Without a total only the label is known.
function progress(step) {
  const bar = $("diagnose-progress");
  const amount = step.total > 0 && step.unit !== "%" && step.unit !== "B" ? `, ${step.done} of ${step.total} ${step.unit}` : "";
  $("diagnose-note").textContent = `${step.label}${amount.trimEnd()}…`;
  bar.hidden = false;
  if (step.total > 0) bar.value = Math.min(1, step.done / step.total);
  else bar.removeAttribute("value");
}

function busy(on) {
  $("examine").disabled = on;
  $("stop-examine").hidden = !on;
  $("diagnose-progress").hidden = true;
}

async function examine() {
  const note = $("diagnose-note");
  const text = $("lines").value;
  if (!text.trim() && !file) { note.textContent = "Drop a dump, or paste log lines."; return; }
  const dump = file ?? new Blob([text]);
  const asked = { model: $("model").value || undefined, prompt: $("fed").value || undefined, name: file?.name };
  $("report").replaceChildren();
  running = new AbortController();
  busy(true);
  progress({ label: "sending the dump", done: 0, total: 0, unit: "" });
  try {
    for await (const event of upload("/v1/diagnose", asked, dump, running.signal)) {
      if (event.verdict === undefined) { progress(event); continue; }
      note.textContent = `Done: ${event.verdict}.`;
      if (event.report) render(event.report, $("report"));
      else $("report").replaceChildren(make("pre", {}, event.words));
    }
  } catch (error) {
    note.textContent = running.signal.aborted ? "Stopped." : error.message;
  }
  running = null;
  busy(false);
}

export function start() {
  $("diagnose-form").addEventListener("submit", (event) => { event.preventDefault(); examine(); });
  $("stop-examine").addEventListener("click", () => running?.abort());
  $("dump").addEventListener("change", (event) => take(event.target.files[0]));
  take($("dump").files[0]); // chosen before this code had arrived
  for (const kind of ["dragover", "dragleave", "drop"]) {
    zone.addEventListener(kind, (event) => {
      event.preventDefault();
      zone.classList.toggle("over", kind === "dragover");
      if (kind === "drop") take(event.dataTransfer.files[0]);
    });
  }
}
