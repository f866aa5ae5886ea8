// Writes an assay dump (JSON lines) of GPU buffers: for engines in WGSL, transformers.js, ONNX Runtime web, or your own.
//
//   const dump = new GpuDump(device, "my-engine", tokens);
//   dump.copy("attn_norm-0", [tokens.length, 576], buffer);     // after the pass that writes the buffer is submitted
//   await dump.post("http://127.0.0.1:8090");                   // to: assay watch MODEL --http 8090
//   await dump.download("dump.jsonl");                          // or: assay diagnose MODEL dump.jsonl

/** A float16 as a number. */
export function half(h) {
  const sign = h & 0x8000 ? -1 : 1;
  const exponent = (h >> 10) & 31;
  const mantissa = h & 1023;
  if (exponent === 31) return mantissa ? NaN : sign * Infinity;
  return sign * (exponent ? (1 + mantissa / 1024) * 2 ** (exponent - 15) : mantissa * 2 ** -24);
}

/** The numbers of a buffer's bytes; `type` is f32, f16, i32 or u32. */
export function numbers(bytes, type = "f32") {
  if (type === "f16") return Array.from(new Uint16Array(bytes), half);
  return Array.from(new { f32: Float32Array, i32: Int32Array, u32: Uint32Array }[type](bytes));
}

export class GpuDump {
  constructor(device, engine, tokens) {
    this.device = device;
    this.lines = [JSON.stringify({ assay_dump: 1, engine, tokens: Array.from(tokens) })];
    this.pending = [];
  }

  /** Copy a buffer as it is now. `shape` is row-major: slowest axis first. Later commands may overwrite the buffer. */
  copy(name, shape, buffer, { type = "f32", offset = 0 } = {}) {
    const bytes = shape.reduce((a, b) => a * b, 1) * (type === "f16" ? 2 : 4);
    const size = Math.ceil(bytes / 4) * 4;
    const landing = this.device.createBuffer({ size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
    const encoder = this.device.createCommandEncoder();
    encoder.copyBufferToBuffer(buffer, offset, landing, 0, size); // the buffer needs COPY_SRC
    this.device.queue.submit([encoder.finish()]);
    this.pending.push(
      landing.mapAsync(GPUMapMode.READ).then(() => {
        const bytesFound = landing.getMappedRange().slice(0, bytes);
        landing.destroy();
        return this.tensor(name, shape, numbers(bytesFound, type));
      }),
    );
  }

  /** One value. NaN and infinities become null. */
  tensor(name, shape, values) {
    return JSON.stringify({ name, shape, values: Array.from(values) });
  }

  /** All lines, once every copy has arrived, in the order of the copies. */
  async text() {
    this.lines.push(...(await Promise.all(this.pending.splice(0))));
    return this.lines.join("\n") + "\n";
  }

  /** Send the dump. The receiver is away while it judges the dump before, so a refused connection is tried again. */
  async post(url, tries = 20) {
    const body = await this.text();
    for (;;) {
      try {
        return await fetch(url, { method: "POST", body });
      } catch (error) {
        if (--tries < 1) throw error;
        await new Promise((done) => setTimeout(done, 500));
      }
    }
  }

  async download(file = "dump.jsonl") {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([await this.text()]));
    link.download = file;
    link.click();
  }
}
