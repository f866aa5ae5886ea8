// Writes an assay dump (JSON lines). Open once, then call `tensor` wherever a value is known.
// In a browser collect the lines instead and offer them as a download.
import { appendFileSync, writeFileSync } from "node:fs";

export class Dump {
  constructor(path, engine, tokens) {
    this.path = path;
    writeFileSync(path, JSON.stringify({ assay_dump: 1, engine, tokens: Array.from(tokens) }) + "\n");
  }

  /** `shape` is row-major: slowest axis first, e.g. [tokens, heads, headDim]. NaN becomes null. */
  tensor(name, shape, values) {
    const line = JSON.stringify({ name, shape, values: Array.from(values) });
    appendFileSync(this.path, line + "\n");
  }
}

if (process.argv[1] === import.meta.filename) {
  const dump = new Dump(process.argv[2] ?? "dump.jsonl", "example-js", [1, 450]);
  dump.tensor("embd", [2, 3], Float32Array.of(0.1, -2.5, 3e-7, 4, 5.25, -6));
}
