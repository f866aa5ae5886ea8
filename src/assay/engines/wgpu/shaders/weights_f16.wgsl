// float16: 32 chunks an item.
const CHUNKS = 32u;
fn weight_at(base : u32, i : u32) -> u32 {
  return from_half((w[base + 32u * (i / 8u)][(i / 2u) % 4u] >> (16u * (i % 2u))) & 0xffffu);
}
