// The scan of Mamba. An invocation has a column of a head of a piece, and walks through its tokens.
struct Par { zero : u32, heads : u32, width : u32, channels : u32, group_heads : u32, a_each : u32, chains : u32,
             x_at : u32, x_stride : u32, dt_at : u32, dt_stride : u32, B_at : u32, B_stride : u32, C_at : u32,
             C_stride : u32, out_stride : u32, state_at : u32, state_size : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> step : array<u32>;
@group(0) @binding(2) var<storage, read> x : array<u32>;
@group(0) @binding(3) var<storage, read> dt : array<u32>;
@group(0) @binding(4) var<storage, read> B : array<u32>;
@group(0) @binding(5) var<storage, read> C : array<u32>;
@group(0) @binding(6) var<storage, read> w : array<u32>;
@group(0) @binding(7) var<storage, read_write> states : array<u32>;
@group(0) @binding(8) var<storage, read_write> out : array<u32>;
//#include arithmetic
//#include functions
//#include step
//#include chains
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) g : vec3<u32>) {
  if (g.x >= par.heads * par.width) { return; }
  let h = g.x / par.width;
  let group = h / par.group_heads;
  let first = piece(g.y, 0u);
  let own = par.state_at + g.x * par.channels;
  let after = piece(g.y, 3u) * par.state_size + own;
  var before = piece(g.y, 2u) * par.state_size + own;
  var begins = piece(g.y, 4u) == 1u;
  for (var t = first; t < first + piece(g.y, 1u); t++) {
    let step_size = dt[par.dt_at + t * par.dt_stride + h];
    let u = mul(step_size, x[par.x_at + t * par.x_stride + g.x]);
    clear_chains();
    var a = 0u;
    for (var n = 0u; n < par.channels; n++) {
      if (n == 0u || par.a_each > 1u) { a = exp_of(mul(step_size, w[h * par.a_each + n % par.a_each])); }
      let at = group * par.channels + n;
      var s = 0u;
      if (!begins) { s = states[before + n]; }
      s = fused(u, B[par.B_at + t * par.B_stride + at], mul(a, s));
      states[after + n] = s;
      link(n, s, C[par.C_at + t * par.C_stride + at]);
    }
    out[t * par.out_stride + g.x] = chained();
    before = after;
    begins = false;
  }
}
