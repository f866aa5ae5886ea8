// Convolution over the last taps of each channel. An invocation has a channel of a piece, and walks through its tokens.
struct Par { zero : u32, channels : u32, taps : u32, x_at : u32, x_stride : u32, out_stride : u32, state_at : u32,
             state_size : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> step : array<u32>;
@group(0) @binding(2) var<storage, read> x : array<u32>;
@group(0) @binding(3) var<storage, read> w : array<u32>;
@group(0) @binding(4) var<storage, read_write> states : array<u32>;
@group(0) @binding(5) var<storage, read_write> out : array<u32>;
//#include arithmetic
//#include step
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) g : vec3<u32>) {
  if (g.x >= par.channels) { return; }
  let own = par.state_at + g.x * (par.taps - 1u);
  let before = piece(g.y, 2u) * par.state_size + own;
  let first = piece(g.y, 0u);
  let count = piece(g.y, 1u);
  var window : array<u32, 16>;  // the last taps, oldest first
  for (var k = 0u; k + 1u < par.taps; k++) {
    window[k + 1u] = select(states[before + k], 0u, piece(g.y, 4u) == 1u);
  }
  for (var t = first; t < first + count; t++) {
    var y = 0u;
    for (var k = 0u; k < par.taps; k++) {
      if (k + 1u < par.taps) { window[k] = window[k + 1u]; } else { window[k] = x[par.x_at + t * par.x_stride + g.x]; }
      y = fused(w[g.x * par.taps + k], window[k], y);
    }
    out[t * par.out_stride + g.x] = y;
  }
  let after = piece(g.y, 3u) * par.state_size + own;
  for (var k = 0u; k + 1u < par.taps; k++) { states[after + k] = window[k + 1u]; }
}
