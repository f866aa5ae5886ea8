// From the bytes of a GGUF tensor to the tiles that the kernels read. engines/wgpu/weight_tiles.py of the package has the
// layout of tiles, native/kernels/blocks.cpp that of the blocks; tests/library/test_website_weights.py compares the bytes.

const ROWS = 32; // of a tile
const UNIT = 256; // columns of an item
const NEXT = 512; // bytes from a chunk of an item to its next: a chunk of each of the 32 rows lies between

/** The values of all half floats. An infinite scale counts as NaN, as in the engines. */
const HALVES = Float32Array.from({ length: 65536 }, (_, h) => {
  const exponent = (h >> 10) & 31;
  const mantissa = h & 1023;
  const size = exponent === 31 ? NaN : exponent ? (1 + mantissa / 1024) * 2 ** (exponent - 15) : mantissa * 2 ** -24;
  return h & 0x8000 ? -size : size;
});
const HALF_BITS = new Uint32Array(HALVES.buffer);

/** What is read (`src`, `view`) and written (`dst` and other views of its memory). */
class Memory {
  constructor(src, dst) {
    this.src = src;
    this.view = new DataView(src.buffer, src.byteOffset, src.byteLength);
    this.dst = dst;
    this.words = new Uint32Array(dst.buffer, dst.byteOffset, dst.byteLength / 4);
    this.halves = new Uint16Array(dst.buffer, dst.byteOffset, dst.byteLength / 2);
    this.floats = new Float32Array(this.words.buffer, dst.byteOffset, dst.byteLength / 4);
  }

  copy16(from, to) {
    for (let i = 0; i < 4; i++) this.words[to / 4 + i] = this.view.getUint32(from + 4 * i, true);
  }

  half(from) {
    return HALVES[this.view.getUint16(from, true)];
  }

  /** A scale: exact in a float, and never -0. */
  put(at, chunk, index, value) {
    this.floats[(at + (chunk + (index >> 2)) * NEXT) / 4 + (index & 3)] = value + 0;
  }
}

// Codes of group g (32 columns) of an item, from group j of the block at p. `at` is the item's first chunk.

/** Nibbles whose order in the file is that of the tile: columns 0 to 15 in the low half, 16 to 31 in the high half. */
const nibbles = (skip, step = 0) => (m, p, j, at, g) => m.copy16(p + skip + step * j, at + g * NEXT);

/** MXFP4: the first of the two codes that mean 0 is written as the second. */
function mxfp4Codes({ src, dst }, p, j, at, g) {
  for (let i = 0; i < 16; i++) {
    const byte = src[p + 1 + i];
    dst[at + g * NEXT + i] = byte | (byte & 15 ? 0 : 8) | (byte >> 4 ? 0 : 128);
  }
}

/** Q5_0 and Q5_1: nibbles with 32 fifth bits before them. */
const withFifthBits = (skip, less) => ({ src, dst, view }, p, j, at, g) => {
  const high = view.getUint32(p + skip, true);
  const to = at + 2 * g * NEXT;
  for (let i = 0; i < 16; i++) {
    const byte = src[p + skip + 4 + i];
    dst[to + i] = ((byte & 15) | (((high >>> i) & 1) << 4)) - less;
    dst[to + NEXT + i] = ((byte >> 4) | (((high >>> (i + 16)) & 1) << 4)) - less;
  }
};

function q8Codes(m, p, j, at, g) {
  m.copy16(p + 2, at + 2 * g * NEXT);
  m.copy16(p + 18, at + (2 * g + 1) * NEXT);
}

function q2kCodes({ src, dst }, p, j, at, g) {
  const from = p + 16 + 32 * (j >> 2);
  for (let i = 0; i < 32; i++) dst[at + (2 * g + (i >> 4)) * NEXT + (i & 15)] = (src[from + i] >> (2 * (j & 3))) & 3;
}

function q3kCodes({ src, dst }, p, j, at, g) {
  const from = p + 32 + 32 * (j >> 2);
  for (let i = 0; i < 32; i++) {
    const third = (src[p + i] >> j) & 1 ? 0 : 4;
    dst[at + (2 * g + (i >> 4)) * NEXT + (i & 15)] = ((src[from + i] >> (2 * (j & 3))) & 3) - third;
  }
}

/** Q4_K: two groups share 32 bytes. */
function q4kCodes({ src, dst }, p, j, at, g) {
  const from = p + 16 + 32 * (j >> 1);
  const shift = 4 * (j & 1);
  for (let i = 0; i < 16; i++) {
    dst[at + g * NEXT + i] = ((src[from + i] >> shift) & 15) | (((src[from + 16 + i] >> shift) & 15) << 4);
  }
}

function q5kCodes({ src, dst }, p, j, at, g) {
  const from = p + 48 + 32 * (j >> 1);
  const shift = 4 * (j & 1);
  for (let i = 0; i < 32; i++) {
    dst[at + (2 * g + (i >> 4)) * NEXT + (i & 15)] = ((src[from + i] >> shift) & 15) | (((src[p + 16 + i] >> j) & 1) << 4);
  }
}

/** Q6_K: nibbles, then the two high bits of four codes in a byte: of codes b, b + 4, b + 8 and b + 12. */
function q6kCodes({ src, dst }, p, j, at, g) {
  const low = p + 64 * (j >> 2) + 32 * (j & 1);
  const shift = 4 * ((j >> 1) & 1);
  const high = p + 128 + 32 * (j >> 2);
  const pair = 2 * (j & 3);
  for (let i = 0; i < 16; i++) {
    dst[at + g * NEXT + i] = ((src[low + i] >> shift) & 15) | (((src[low + 16 + i] >> shift) & 15) << 4);
  }
  const to = at + (8 + (g >> 1)) * NEXT + 8 * (g & 1);
  for (let h = 0; h < 2; h++) {
    for (let b = 0; b < 4; b++) {
      let byte = 0;
      for (let i = 0; i < 4; i++) byte |= ((src[high + 16 * h + 4 * i + b] >> pair) & 3) << (2 * i);
      dst[to + 4 * h + b] = byte;
    }
  }
}

// Scales of group g, written from chunk c on.

/** Half floats as they are; a block of some types has a minimum after its scale. */
const halves = (minimum) => (m, p, j, at, g, c) => {
  m.halves[(at + c * NEXT) / 2 + g] = finite(m.view.getUint16(p, true));
  if (minimum) m.halves[(at + (c + 1) * NEXT) / 2 + g] = finite(m.view.getUint16(p + 2, true));
};
const finite = (h) => ((h & 0x7fff) === 0x7c00 ? 0x7e00 : h);

/** As they are in the file, once an item. */
const asInFile = (skip, chunks) => (m, p, j, at, g, c) => {
  if (g) return;
  for (let i = 0; i < chunks; i++) m.copy16(p + skip + 16 * i, at + (c + i) * NEXT);
};

function q6kScales(m, p, j, at, g, c) {
  if (g) return;
  m.copy16(p + 192, at + c * NEXT);
  m.halves[(at + (c + 1) * NEXT) / 2] = m.view.getUint16(p + 208, true);
}

function q2kScales(m, p, j, at, g, c) {
  for (let h = 2 * j; h < 2 * j + 2; h++) {
    m.put(at, c, h, m.half(p + 80) * (m.src[p + h] & 15));
    m.put(at, c + 4, h, -m.half(p + 82) * (m.src[p + h] >> 4));
  }
}

function q3kScales(m, p, j, at, g, c) {
  for (let h = 2 * j; h < 2 * j + 2; h++) {
    const low = h < 8 ? m.src[p + 96 + h] & 15 : m.src[p + 96 + h - 8] >> 4;
    const high = (m.src[p + 104 + (h & 3)] >> (2 * (h >> 2))) & 3;
    m.put(at, c, h, m.half(p + 108) * ((low | (high << 4)) - 32));
  }
}

function q5kScales(m, p, j, at, g, c) {
  const s = p + 4;
  const [scale, minimum] = j < 4
    ? [m.src[s + j] & 63, m.src[s + j + 4] & 63]
    : [(m.src[s + j + 4] & 15) | ((m.src[s + j - 4] >> 6) << 4), (m.src[s + j + 4] >> 4) | ((m.src[s + j] >> 6) << 4)];
  m.put(at, c, j, m.half(p) * scale);
  m.put(at, c + 2, j, -m.half(p + 2) * minimum);
}

function iq4xsScales(m, p, j, at, g, c) {
  const low = (m.src[p + 4 + (j >> 1)] >> (4 * (j & 1))) & 15;
  const high = (m.view.getUint16(p + 2, true) >> (2 * j)) & 3;
  m.put(at, c, j, m.half(p) * ((low | (high << 4)) - 32));
}

/** Two to the power of the byte minus 128. */
function mxfp4Scales(m, p, j, at, g, c) {
  const e = m.src[p];
  m.words[(at + (c + (g >> 2)) * NEXT) / 4 + (g & 3)] = e > 228 ? 0x7fc00000 : e < 2 ? 0x00200000 << e : (e - 1) << 23;
}

// By type: weights and bytes of a block, chunks of codes and of all, and the byte of a nibble pair without a column.
const TYPES = {
  Q4_0: { weights: 32, bytes: 18, codes: 8, chunks: 9, pad: 0x88, code: nibbles(2), scale: halves(false) },
  Q4_1: { weights: 32, bytes: 20, codes: 8, chunks: 10, code: nibbles(4), scale: halves(true) },
  Q5_0: { weights: 32, bytes: 22, codes: 16, chunks: 17, code: withFifthBits(2, 16), scale: halves(false) },
  Q5_1: { weights: 32, bytes: 24, codes: 16, chunks: 18, code: withFifthBits(4, 0), scale: halves(true) },
  Q8_0: { weights: 32, bytes: 34, codes: 16, chunks: 17, code: q8Codes, scale: halves(false) },
  Q2_K: { weights: 256, bytes: 84, codes: 16, chunks: 24, code: q2kCodes, scale: q2kScales },
  Q3_K: { weights: 256, bytes: 110, codes: 16, chunks: 20, code: q3kCodes, scale: q3kScales },
  Q4_K: { weights: 256, bytes: 144, codes: 8, chunks: 9, code: q4kCodes, scale: asInFile(0, 1) },
  Q5_K: { weights: 256, bytes: 176, codes: 16, chunks: 20, code: q5kCodes, scale: q5kScales },
  Q6_K: { weights: 256, bytes: 210, codes: 12, chunks: 14, code: q6kCodes, scale: q6kScales },
  IQ4_NL: { weights: 32, bytes: 18, codes: 8, chunks: 9, code: nibbles(2), scale: halves(false) },
  IQ4_XS: { weights: 256, bytes: 136, codes: 8, chunks: 10, code: nibbles(8, 16), scale: iq4xsScales },
  MXFP4: { weights: 32, bytes: 17, codes: 8, chunks: 10, pad: 0x88, code: mxfp4Codes, scale: mxfp4Scales },
  F32: { weights: 1, bytes: 4, chunks: 64 },
  F16: { weights: 1, bytes: 2, chunks: 32 },
  BF16: { weights: 1, bytes: 2, chunks: 32 },
};

/** Bytes of a row of the file. */
export const rowBytes = (type, columns) => (columns / TYPES[type].weights) * TYPES[type].bytes;

/** Bytes of a tile. */
export const tileBytes = (type, columns) => Math.ceil(columns / UNIT) * TYPES[type].chunks * NEXT;

/** Rows of the file in `src` as tiles in `dst`, from a tile's first row on. `dst` begins at a multiple of 16. */
export function pack(type, src, rows, columns, dst) {
  const { weights, bytes, codes, chunks, pad, code, scale } = TYPES[type];
  const m = new Memory(src, dst);
  const row = rowBytes(type, columns);
  const tile = tileBytes(type, columns);
  dst.fill(0);
  for (let r = 0; r < rows; r++) {
    const first = Math.floor(r / ROWS) * tile + (r % ROWS) * 16;
    if (weights === 1) {
      const whole = row >> 4;
      for (let k = 0; k < whole; k++) m.copy16(r * row + 16 * k, first + k * NEXT);
      for (let i = 16 * whole; i < row; i++) dst[first + whole * NEXT + (i & 15)] = src[r * row + i];
      continue;
    }
    for (let g = 0; g < columns / 32; g++) {
      const p = r * row + Math.floor((32 * g) / weights) * bytes;
      const at = first + (g >> 3) * chunks * NEXT;
      const j = weights === 32 ? 0 : g & 7;
      code(m, p, j, at, g & 7);
      scale(m, p, j, at, g & 7, codes);
    }
    for (let g = columns / 32; pad && g & 7; g++) {
      const at = first + (g >> 3) * chunks * NEXT + (g & 7) * NEXT;
      dst.fill(pad, at, at + 16);
    }
  }
}

/** Numbers of the file as floats. */
export function floats(type, src) {
  const { bytes } = TYPES[type];
  const out = new Uint32Array(src.length / bytes);
  const view = new DataView(src.buffer, src.byteOffset, src.byteLength);
  for (let i = 0; i < out.length; i++) {
    if (type === "F32") out[i] = view.getUint32(4 * i, true);
    else if (type === "BF16") out[i] = view.getUint16(2 * i, true) << 16;
    else out[i] = wide(view.getUint16(2 * i, true));
  }
  return new Float32Array(out.buffer);
}

/** The bits of a half float as a float, infinite ones included. */
function wide(h) {
  const sign = (h & 0x8000) << 16;
  if (((h >> 10) & 31) === 31) return sign | 0x7f800000 | ((h & 1023) << 13);
  return HALF_BITS[h];
}
