// Two chunks of 8 float32 scales, one a block; two more with minima.
//#if minima
const SCALE_CHUNKS = 4u;
//#end
//#if plain
const SCALE_CHUNKS = 2u;
//#end
fn scale(base : u32, b : u32, half : u32) -> u32 { return w[base + 32u * (CODE_CHUNKS + b / 4u)][b % 4u]; }
fn minimum(base : u32, b : u32, half : u32) -> u32 { return w[base + 32u * (CODE_CHUNKS + 2u + b / 4u)][b % 4u]; }
