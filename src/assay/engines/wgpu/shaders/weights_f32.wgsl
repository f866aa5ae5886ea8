// Floats as they are: 64 chunks an item.
const CHUNKS = 64u;
fn weight_at(base : u32, i : u32) -> u32 { return w[base + 32u * (i / 4u)][i % 4u]; }
