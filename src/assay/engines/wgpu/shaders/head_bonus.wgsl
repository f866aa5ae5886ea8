// x + v * dot(r * k, w) of each head, for RWKV-7. An invocation has a head of a row.
struct Par { zero : u32, heads : u32, width : u32, chains : u32, x_at : u32, x_stride : u32, r_at : u32, r_stride : u32,
             k_at : u32, k_stride : u32, v_at : u32, v_stride : u32, out_stride : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> x : array<u32>;
@group(0) @binding(2) var<storage, read> r : array<u32>;
@group(0) @binding(3) var<storage, read> k : array<u32>;
@group(0) @binding(4) var<storage, read> v : array<u32>;
@group(0) @binding(5) var<storage, read> w : array<u32>;
@group(0) @binding(6) var<storage, read_write> out : array<u32>;
//#include arithmetic
//#include chains
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) g : vec3<u32>) {
  if (g.x >= par.heads) { return; }
  let first = g.x * par.width;
  clear_chains();
  for (var i = 0u; i < par.width; i++) {
    let c = first + i;
    link(i, mul(r[par.r_at + g.y * par.r_stride + c], k[par.k_at + g.y * par.k_stride + c]), w[c]);
  }
  let s = chained();
  for (var c = first; c < first + par.width; c++) {
    out[g.y * par.out_stride + c] = fused(s, v[par.v_at + g.y * par.v_stride + c], x[par.x_at + g.y * par.x_stride + c]);
  }
}
