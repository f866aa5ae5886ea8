// Two chunks of 8 float32 scales, one a block; two more with minima.
//#if minima
const SCALE_CHUNKS = 4u;
//#end
//#if plain
const SCALE_CHUNKS = 2u;
//#end
fn scale(base : u32, b : u32, half : u32) -> u32 { return w[base + 32u * (CODE_CHUNKS + b / 4u)][b % 4u]; }
fn minimum(base : u32, b : u32, half : u32) -> u32 { return w[base + 32u * (CODE_CHUNKS + 2u + b / 4u)][b % 4u]; }
// A unit's scales at once, for products without tests. TAME: none of them is wild unless it is NaN or infinite.
const TAME = false;
struct Scales { d0 : vec4<f32>, d1 : vec4<f32>, m0 : vec4<f32>, m1 : vec4<f32> }
fn four_floats(base : u32, chunk : u32) -> vec4<f32> { return bitcast<vec4<f32>>(w[base + 32u * (CODE_CHUNKS + chunk)]); }
fn unit_scales(base : u32) -> Scales {
  var s : Scales;
  s.d0 = four_floats(base, 0u);
  s.d1 = four_floats(base, 1u);
//#if minima
  s.m0 = four_floats(base, 2u);
  s.m1 = four_floats(base, 3u);
//#end
  return s;
}
fn quick_scale(s : Scales, b : u32, half : u32) -> f32 { return select(s.d0[b % 4u], s.d1[b % 4u], b >= 4u); }
fn quick_minimum(s : Scales, b : u32, half : u32) -> f32 { return select(s.m0[b % 4u], s.m1[b % 4u], b >= 4u); }
