// Codes of 4 bits from 0 to 15: chunk b of an item is block b, the first 16 in the low nibbles.
const CODE_CHUNKS = 8u;
struct Codes { chunk : vec4<u32> }
fn codes(base : u32, b : u32) -> Codes { return Codes(w[base + 32u * b]); }
fn low(c : Codes) -> vec4<u32> { return c.chunk & vec4<u32>(0x0f0f0f0fu); }
fn high(c : Codes) -> vec4<u32> { return (c.chunk >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu); }
