// The row before each row. An invocation has a channel of a piece, and walks through its tokens.
struct Par { zero : u32, channels : u32, x_at : u32, x_stride : u32, out_stride : u32, state_at : u32, state_size : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> step : array<u32>;
@group(0) @binding(2) var<storage, read> x : array<u32>;
@group(0) @binding(3) var<storage, read_write> states : array<u32>;
@group(0) @binding(4) var<storage, read_write> out : array<u32>;
//#include step
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) g : vec3<u32>) {
  if (g.x >= par.channels) { return; }
  let own = par.state_at + g.x;
  let first = piece(g.y, 0u);
  var before = select(states[piece(g.y, 2u) * par.state_size + own], 0u, piece(g.y, 4u) == 1u);
  for (var t = first; t < first + piece(g.y, 1u); t++) {
    out[t * par.out_stride + g.x] = before;
    before = x[par.x_at + t * par.x_stride + g.x];
  }
  states[piece(g.y, 3u) * par.state_size + own] = before;
}
