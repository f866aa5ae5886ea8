// Codes of 4 bits from -8 to 7: 8 is subtracted in each byte.
const CODE_CHUNKS = 8u;
fn signed_codes(v : vec4<u32>) -> vec4<u32> {
  let wide = (v & vec4<u32>(0x0f0f0f0fu)) | vec4<u32>(0x80808080u);
  return (wide - vec4<u32>(0x08080808u)) ^ vec4<u32>(0x80808080u);
}
struct Codes { chunk : vec4<u32> }
fn codes(base : u32, b : u32) -> Codes { return Codes(w[base + 32u * b]); }
fn low(c : Codes) -> vec4<u32> { return signed_codes(c.chunk); }
fn high(c : Codes) -> vec4<u32> { return signed_codes(c.chunk >> vec4<u32>(4u)); }
