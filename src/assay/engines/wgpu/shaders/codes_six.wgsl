// Codes of 6 bits from -32 to 31: the low four as nibbles, chunk b for block b; then the high two, chunk 8 + b / 2 for
// blocks b and b + 1, a word for each half. Bits 2i and 2i + 1 of its bytes belong to the half's word i.
const CODE_CHUNKS = 12u;
struct Codes { chunk : vec4<u32>, high : vec2<u32> }
fn codes(base : u32, b : u32) -> Codes {
  let two = w[base + 32u * (8u + b / 2u)];
  return Codes(w[base + 32u * b], select(two.xy, two.zw, b % 2u == 1u));
}
fn six(v : vec4<u32>, high : u32) -> vec4<u32> {
  let top = (vec4<u32>(high) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(0x03030303u);
  let wide = (v & vec4<u32>(0x0f0f0f0fu)) | (top << vec4<u32>(4u)) | vec4<u32>(0x80808080u);
  return (wide - vec4<u32>(0x20202020u)) ^ vec4<u32>(0x80808080u);
}
fn low(c : Codes) -> vec4<u32> { return six(c.chunk, c.high.x); }
fn high(c : Codes) -> vec4<u32> { return six(c.chunk >> vec4<u32>(4u), c.high.y); }
