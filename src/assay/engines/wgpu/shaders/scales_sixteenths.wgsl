// Four chunks of 16 float32 scales, one for each half of a block; four more with minima.
//#if minima
const SCALE_CHUNKS = 8u;
//#end
//#if plain
const SCALE_CHUNKS = 4u;
//#end
fn scale(base : u32, b : u32, half : u32) -> u32 {
  return w[base + 32u * (CODE_CHUNKS + b / 2u)][2u * (b % 2u) + half];
}
fn minimum(base : u32, b : u32, half : u32) -> u32 {
  return w[base + 32u * (CODE_CHUNKS + 4u + b / 2u)][2u * (b % 2u) + half];
}
// A unit's scales at once, for products without tests. TAME: none of them is wild unless it is NaN or infinite.
const TAME = false;
struct Scales { d0 : vec4<f32>, d1 : vec4<f32>, d2 : vec4<f32>, d3 : vec4<f32>,
                m0 : vec4<f32>, m1 : vec4<f32>, m2 : vec4<f32>, m3 : vec4<f32> }
fn four_floats(base : u32, chunk : u32) -> vec4<f32> { return bitcast<vec4<f32>>(w[base + 32u * (CODE_CHUNKS + chunk)]); }
fn unit_scales(base : u32) -> Scales {
  var s : Scales;
  s.d0 = four_floats(base, 0u);
  s.d1 = four_floats(base, 1u);
  s.d2 = four_floats(base, 2u);
  s.d3 = four_floats(base, 3u);
//#if minima
  s.m0 = four_floats(base, 4u);
  s.m1 = four_floats(base, 5u);
  s.m2 = four_floats(base, 6u);
  s.m3 = four_floats(base, 7u);
//#end
  return s;
}
fn one_of(a : vec4<f32>, b : vec4<f32>, c : vec4<f32>, d : vec4<f32>, i : u32) -> f32 {
  return select(select(a[i % 4u], b[i % 4u], i >= 4u), select(c[i % 4u], d[i % 4u], i >= 12u), i >= 8u);
}
fn quick_scale(s : Scales, b : u32, half : u32) -> f32 { return one_of(s.d0, s.d1, s.d2, s.d3, 2u * b + half); }
fn quick_minimum(s : Scales, b : u32, half : u32) -> f32 { return one_of(s.m0, s.m1, s.m2, s.m3, 2u * b + half); }
