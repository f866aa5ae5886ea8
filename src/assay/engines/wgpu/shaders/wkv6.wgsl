// The recurrence of RWKV-6. An invocation has a value column of a head of a piece, and walks through its tokens.
struct Par { zero : u32, heads : u32, width : u32, channels : u32, chains : u32, r_at : u32, r_stride : u32, w_at : u32,
             w_stride : u32, k_at : u32, k_stride : u32, v_at : u32, v_stride : u32, out_stride : u32, state_at : u32,
             state_size : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> step : array<u32>;
@group(0) @binding(2) var<storage, read> r : array<u32>;
@group(0) @binding(3) var<storage, read> w : array<u32>;
@group(0) @binding(4) var<storage, read> k : array<u32>;
@group(0) @binding(5) var<storage, read> v : array<u32>;
@group(0) @binding(6) var<storage, read> u : array<u32>;
@group(0) @binding(7) var<storage, read_write> states : array<u32>;
@group(0) @binding(8) var<storage, read_write> out : array<u32>;
//#include arithmetic
//#include step
//#include chains
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id : vec3<u32>) {
  if (id.x >= par.heads * par.width) { return; }
  let first = piece(id.y, 0u);
  let row = (id.x / par.width) * par.channels;
  let own = par.state_at + row * par.width + id.x % par.width;  // the state is [key, value]
  let after = piece(id.y, 3u) * par.state_size + own;
  var before = piece(id.y, 2u) * par.state_size + own;
  var begins = piece(id.y, 4u) == 1u;
  for (var t = first; t < first + piece(id.y, 1u); t++) {
    let value = v[par.v_at + t * par.v_stride + id.x];
    clear_chains();
    for (var i = 0u; i < par.channels; i++) {
      var s = 0u;
      if (!begins) { s = states[before + i * par.width]; }
      let m = mul(k[par.k_at + t * par.k_stride + row + i], value);
      link(i, fused(u[row + i], m, s), r[par.r_at + t * par.r_stride + row + i]);
      states[after + i * par.width] = fused(w[par.w_at + t * par.w_stride + row + i], s, m);
    }
    out[t * par.out_stride + id.x] = chained();
    before = after;
    begins = false;
  }
}
