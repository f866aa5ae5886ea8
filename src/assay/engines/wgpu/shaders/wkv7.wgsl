// The recurrence of RWKV-7. An invocation has a value row of a head of a piece, and walks through its tokens.
struct Par { zero : u32, heads : u32, width : u32, channels : u32, chains : u32, r_at : u32, r_stride : u32, w_at : u32,
             w_stride : u32, k_at : u32, k_stride : u32, v_at : u32, v_stride : u32, kk_at : u32, kk_stride : u32,
             a_at : u32, a_stride : u32, out_stride : u32, state_at : u32, state_size : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> step : array<u32>;
@group(0) @binding(2) var<storage, read> r : array<u32>;
@group(0) @binding(3) var<storage, read> w : array<u32>;
@group(0) @binding(4) var<storage, read> k : array<u32>;
@group(0) @binding(5) var<storage, read> v : array<u32>;
@group(0) @binding(6) var<storage, read> kk : array<u32>;
@group(0) @binding(7) var<storage, read> a : array<u32>;
@group(0) @binding(8) var<storage, read_write> states : array<u32>;
@group(0) @binding(9) var<storage, read_write> out : array<u32>;
//#include arithmetic
//#include step
//#include chains
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id : vec3<u32>) {
  if (id.x >= par.heads * par.width) { return; }
  let first = piece(id.y, 0u);
  let own = par.state_at + id.x * par.channels;
  let after = piece(id.y, 3u) * par.state_size + own;
  let row = (id.x / par.width) * par.channels;
  var before = piece(id.y, 2u) * par.state_size + own;
  var begins = piece(id.y, 4u) == 1u;
  for (var t = first; t < first + piece(id.y, 1u); t++) {
    clear_chains();
    for (var j = 0u; j < par.channels; j++) {
      var s = 0u;
      if (!begins) { s = states[before + j]; }
      states[after + j] = s;
      link(j, s, kk[par.kk_at + t * par.kk_stride + row + j]);
    }
    let taken = negated(chained());
    let value = v[par.v_at + t * par.v_stride + id.x];
    clear_chains();
    for (var j = 0u; j < par.channels; j++) {
      let both = mul(kk[par.kk_at + t * par.kk_stride + row + j], a[par.a_at + t * par.a_stride + row + j]);
      let kept = mul(states[after + j], w[par.w_at + t * par.w_stride + row + j]);
      let s = fused(taken, both, fused(value, k[par.k_at + t * par.k_stride + row + j], kept));
      states[after + j] = s;
      link(j, s, r[par.r_at + t * par.r_stride + row + j]);
    }
    out[t * par.out_stride + id.x] = chained();
    before = after;
    begins = false;
  }
}
