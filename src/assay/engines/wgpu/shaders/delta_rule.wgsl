// The gated delta rule. An invocation has a value column of a head of a piece, and walks through its tokens.
struct Par { zero : u32, heads : u32, width : u32, channels : u32, key_heads : u32, g_each : u32, chains : u32,
             scale : u32, q_at : u32, q_stride : u32, k_at : u32, k_stride : u32, v_at : u32, v_stride : u32, g_at : u32,
             g_stride : u32, beta_at : u32, beta_stride : u32, out_stride : u32, state_at : u32, state_size : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> step : array<u32>;
@group(0) @binding(2) var<storage, read> q : array<u32>;
@group(0) @binding(3) var<storage, read> k : array<u32>;
@group(0) @binding(4) var<storage, read> v : array<u32>;
@group(0) @binding(5) var<storage, read> g : array<u32>;
@group(0) @binding(6) var<storage, read> beta : array<u32>;
@group(0) @binding(7) var<storage, read_write> states : array<u32>;
@group(0) @binding(8) var<storage, read_write> out : array<u32>;
//#include arithmetic
//#include functions
//#include step
//#include chains
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id : vec3<u32>) {
  if (id.x >= par.heads * par.width) { return; }
  let h = id.x / par.width;
  let first = piece(id.y, 0u);
  let own = par.state_at + id.x * par.channels;
  let after = piece(id.y, 3u) * par.state_size + own;
  var before = piece(id.y, 2u) * par.state_size + own;
  var begins = piece(id.y, 4u) == 1u;
  for (var t = first; t < first + piece(id.y, 1u); t++) {
    let row = (h % par.key_heads) * par.channels;
    let k0 = par.k_at + t * par.k_stride + row;
    let q0 = par.q_at + t * par.q_stride + row;
    clear_chains();
    var a = 0u;
    for (var i = 0u; i < par.channels; i++) {
      if (i == 0u || par.g_each > 1u) { a = exp_of(g[par.g_at + t * par.g_stride + h * par.g_each + i % par.g_each]); }
      var s = 0u;
      if (!begins) { s = states[before + i]; }
      s = mul(s, a);
      states[after + i] = s;
      link(i, s, k[k0 + i]);
    }
    let d = mul(beta[par.beta_at + t * par.beta_stride + h], minus(v[par.v_at + t * par.v_stride + id.x], chained()));
    clear_chains();
    for (var i = 0u; i < par.channels; i++) {
      let s = fused(d, k[k0 + i], states[after + i]);
      states[after + i] = s;
      link(i, s, q[q0 + i]);
    }
    out[t * par.out_stride + id.x] = mul(chained(), par.scale);
    before = after;
    begins = false;
  }
}
