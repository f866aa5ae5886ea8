// One chunk of 8 float16 scales, one a block; another with minima. An infinite one counts as NaN.
//#if minima
const SCALE_CHUNKS = 2u;
//#end
//#if plain
const SCALE_CHUNKS = 1u;
//#end
fn half_of(chunk : u32, b : u32) -> u32 {
  let d = from_half((w[chunk][b / 2u] >> (16u * (b & 1u))) & 0xffffu);
  return select(d, NAN, magnitude(d) == INFINITY);
}
fn scale(base : u32, b : u32, half : u32) -> u32 { return half_of(base + 32u * CODE_CHUNKS, b); }
fn minimum(base : u32, b : u32, half : u32) -> u32 { return half_of(base + 32u * (CODE_CHUNKS + 1u), b); }
// A unit's scales at once, for products without tests. TAME: none of them is wild unless it is NaN or infinite.
const TAME = true;
struct Scales { d : vec4<u32>, m : vec4<u32> }
fn unit_scales(base : u32) -> Scales {
  var s : Scales;
  s.d = w[base + 32u * CODE_CHUNKS];
//#if minima
  s.m = w[base + 32u * (CODE_CHUNKS + 1u)];
//#end
  return s;
}
fn quick_scale(s : Scales, b : u32, half : u32) -> f32 { return halves(s.d[b / 2u])[b % 2u]; }
fn quick_minimum(s : Scales, b : u32, half : u32) -> f32 { return halves(s.m[b / 2u])[b % 2u]; }
