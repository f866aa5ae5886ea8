// The weights of a plan: reads the model's files from beginning to end, packs tensor by tensor, and writes buffers of the
// device. Memory stays small: a piece of a tensor, as it is in the file and packed.
import { floats, pack, rowBytes, tileBytes } from "./repack.js";

const ROWS = 32; // of a tile
const PIECE = 4 << 20; // bytes that are read at once, or the rows of a tile if they are more
const SKIPPED = 1 << 20; // bytes that are read and dropped where a new request would cost more
const UNFINISHED = 64 << 20; // bytes written to the device before its queue must have taken them
const ATTEMPTS = 5; // after a connection that broke, without a byte in between

/** A file on the web host: read by Range where the host has it, else from its beginning. */
export function remoteFile(name, size, signal) {
  return async (at) => {
    let reply;
    try {
      reply = await fetch(name, { headers: { Range: `bytes=${at}-` }, signal });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new Broken(`${name} cannot be read (${error.message})`);
    }
    if (reply.status === 404 && name.endsWith(".gguf")) throw new WrongFile(`this page's host has no ${name}; choose the file on this machine`);
    if (!reply.ok) throw new Error(`${name}: the host answers ${reply.status}`);
    const ranged = reply.status === 206;
    const total = ranged ? reply.headers.get("content-range")?.split("/")[1] : reply.headers.get("content-length");
    if (total && !reply.headers.get("content-encoding") && Number(total) !== size) {
      throw new Error(`${name} has ${total} bytes, expected ${size}: it is another file than this page's; export the model again`);
    }
    return { stream: reply.body, at: ranged ? at : 0, ranged };
  };
}

/** A file that the user chose. */
export const localFile = (file) => async (at) => ({ stream: file.slice(at).stream(), at, ranged: true });

/** The model's file is missing or another one: the user can choose it. */
export class WrongFile extends Error {}
class Broken extends Error {}

/** Bytes of a file at ascending places. `open(at)` gives a stream, the place where it begins, and whether it could be `at`. */
export class Ascending {
  constructor(name, open) {
    this.name = name;
    this.open = open;
    this.at = 0; // the place of the first byte of `pending`
    this.pending = new Uint8Array();
    this.room = new Uint8Array();
  }

  /** `count` bytes from `at` on, valid until the next call. */
  async read(at, count) {
    if (this.ranged && at - this.at > this.pending.length + SKIPPED) await this.close();
    if (!this.reader) this.at = at;
    while (this.at < at) {
      if (!this.pending.length) await this.more();
      this.take(Math.min(at - this.at, this.pending.length));
    }
    if (this.pending.length >= count) return this.take(count);
    if (this.room.length < count) this.room = new Uint8Array(count);
    for (let filled = 0; filled < count;) {
      if (!this.pending.length) await this.more();
      const part = this.take(Math.min(count - filled, this.pending.length));
      this.room.set(part, filled);
      filled += part.length;
    }
    return this.room.subarray(0, count);
  }

  take(count) {
    const part = this.pending.subarray(0, count);
    this.pending = this.pending.subarray(count);
    this.at += count;
    return part;
  }

  /** The next bytes of the stream. A connection that breaks is opened again where it broke. */
  async more() {
    for (let attempt = 1; ; attempt++) {
      try {
        if (!this.reader) {
          const { stream, at, ranged } = await this.open(this.at);
          this.reader = stream.getReader();
          this.ranged = ranged;
          this.early = this.at - at; // bytes that a host without Range sends first
        }
        for (;;) {
          const { value, done } = await this.reader.read();
          if (done) throw new Broken(`${this.name} ends too early, after ${this.at} bytes`);
          this.pending = value.subarray(Math.min(this.early, value.length));
          this.early -= value.length - this.pending.length;
          if (this.pending.length) return;
        }
      } catch (error) {
        if (!(error instanceof Broken || error instanceof TypeError) || attempt === ATTEMPTS) throw error;
        await this.close();
        await new Promise((later) => setTimeout(later, 200 * attempt));
      }
    }
  }

  async close() {
    await this.reader?.cancel().catch(() => {});
    this.reader = null;
    this.pending = new Uint8Array();
  }
}

/** Whether a file is the plan's: its header has the recorded hash. */
export async function checkHeader(file, source) {
  if (!file.header) return;
  const digest = await crypto.subtle.digest("SHA-256", await source.read(0, file.header));
  const found = Array.from(new Uint8Array(digest), (b) => b.toString(16).padStart(2, "0")).join("");
  if (found !== file.sha256) throw new WrongFile(`${source.name} is another model than this page's; choose ${file.own}, from which it was exported`);
}

/**
 * Read all tensors of `plan` from `sources`, an Ascending for each of its files, and pass what belongs into buffers to
 * `write(buffer, offset, data)`, which may return a promise. `data` is valid until it is settled.
 */
export async function readTensors(plan, sources, write, report = () => {}) {
  const total = plan.tensors.reduce((sum, tensor) => sum + tensor.bytes, 0);
  let loaded = 0;
  for (const [index, source] of sources.entries()) {
    await checkHeader(plan.files[index], source);
    for (const tensor of plan.tensors.filter((t) => t.file === index)) {
      await (tensor.tiles ? readTiles(tensor, source, write) : readFloats(tensor, source, write));
      loaded += tensor.bytes;
      report({ loaded, total });
    }
    await source.close();
  }
}

async function readFloats(tensor, source, write) {
  const found = floats(tensor.type, await source.read(tensor.at, tensor.bytes));
  for (const [buffer, first] of tensor.floats) await write(buffer, 4 * first, found);
}

async function readTiles(tensor, source, write) {
  const { type, tiles } = tensor;
  const { matrices, rows, columns, first, slices } = tiles;
  const count = Math.ceil(rows / ROWS);
  const ready = type === "tiles"; // packed already
  const size = ready ? tensor.bytes / matrices / count : tileBytes(type, columns);
  const row = ready ? size / ROWS : rowBytes(type, columns);
  const most = Math.max(1, Math.floor(PIECE / Math.max(size, ROWS * row)));
  const out = new Uint8Array(ready ? 0 : most * size);
  for (let matrix = 0; matrix < matrices; matrix++) {
    for (const [buffer, from, held] of slices) {
      // Tiles of the stack that this slice holds; the tensor's are `first` to `first + count`.
      const end = Math.min(first + count, from + held);
      for (let tile = Math.max(first, from); tile < end; tile += most) {
        const here = Math.min(most, end - tile);
        const row0 = (tile - first) * ROWS;
        const height = ready ? here * ROWS : Math.min(here * ROWS, rows - row0);
        const each = ready ? count * ROWS : rows;
        let data = await source.read(tensor.at + (matrix * each + row0) * row, height * row);
        if (!ready) {
          pack(type, data, height, columns, out.subarray(0, here * size));
          data = out.subarray(0, here * size);
        }
        await write(buffer, (matrix * held + tile - from) * size, data);
      }
    }
  }
}

/** Weights on a device: buffers by name, those of the host as arrays of floats. */
export async function loadWeights(plan, sources, device, makeBuffer, report) {
  const buffers = new Map();
  for (const { name, bytes, host } of plan.weights) buffers.set(name, host ? new Float32Array(bytes / 4) : makeBuffer(bytes));
  let unfinished = 0;
  const write = async (name, offset, data) => {
    const target = buffers.get(name);
    if (target instanceof Float32Array) return void target.set(data, offset / 4);
    device.queue.writeBuffer(target, offset, data);
    if ((unfinished += data.byteLength) > UNFINISHED) {
      unfinished = 0;
      await device.queue.onSubmittedWorkDone();
    }
  };
  await readTensors(plan, sources, write, report);
  return buffers;
}
