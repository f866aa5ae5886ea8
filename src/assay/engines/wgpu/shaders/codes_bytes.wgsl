// Codes of 8 bits: chunks 2b and 2b + 1 of an item are block b.
const CODE_CHUNKS = 16u;
fn low(base : u32, b : u32) -> vec4<u32> { return w[base + 64u * b]; }
fn high(base : u32, b : u32) -> vec4<u32> { return w[base + 64u * b + 32u]; }
