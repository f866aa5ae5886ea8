// One value for each value: an expression of A, B and C, the operands' values, and of the numbers P, Q and R. Operand a at
// i is word (i / a_div) * a_jump + (i % a_mod) * a_step of its row, so that heads, halves and broadcasts need no copies.
struct Par { zero : u32, width : u32, out_at : u32, out_stride : u32, acts_stride : u32, p : u32, q : u32, r : u32,
             a_at : u32, a_stride : u32, a_div : u32, a_jump : u32, a_mod : u32, a_step : u32,
             b_at : u32, b_stride : u32, b_div : u32, b_jump : u32, b_mod : u32, b_step : u32,
             c_at : u32, c_stride : u32, c_div : u32, c_jump : u32, c_mod : u32, c_step : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> a : array<u32>;
@group(0) @binding(2) var<storage, read> b : array<u32>;
@group(0) @binding(3) var<storage, read_write> out : array<u32>;
//#if quantised
@group(0) @binding(4) var<storage, read_write> acts : array<u32>;
//#end
//#if three
@group(0) @binding(4) var<storage, read> c : array<u32>;
//#end
//#include arithmetic
//#include functions
//#if quantised
//#include quantise
//#end
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group : vec3<u32>, @builtin(local_invocation_index) l : u32) {
  let row = group.y;
  let i = group.x * 256u + l;
  if (i < par.width) {
    let A = a[par.a_at + row * par.a_stride + (i / par.a_div) * par.a_jump + (i % par.a_mod) * par.a_step];
    let B = b[par.b_at + row * par.b_stride + (i / par.b_div) * par.b_jump + (i % par.b_mod) * par.b_step];
//#if three
    let C = c[par.c_at + row * par.c_stride + (i / par.c_div) * par.c_jump + (i % par.c_mod) * par.c_step];
//#end
    let P = par.p;
    let Q = par.q;
    let R = par.r;
    let y = EXPRESSION;
    out[par.out_at + row * par.out_stride + i] = y;
//#if quantised
    shown[l] = y;
//#end
  }
//#if quantised
  workgroupBarrier();
  quantise(l, min(256u, par.width - group.x * 256u), row * par.acts_stride + group.x * 64u,
           row * par.acts_stride + par.width / 4u + group.x * 8u, par.width / 32u);
//#end
}
