// Tier 2: integers alone. WGSL leaves them no freedom, so these bits need no probe.
fn add(x : u32, y : u32) -> u32 { return int_add(x, y); }
fn mul(x : u32, y : u32) -> u32 { return int_mul(x, y); }
fn fused(x : u32, y : u32, z : u32) -> u32 { return int_fma(x, y, z); }
// Nothing is quick here: these are never called.
const QUICK = false;
const SUMS = 256u;  // words of workgroup memory for partial sums: a compiler in software clears word by word, which took most of its time
fn quick_add(x : f32, y : f32) -> f32 { return x + y; }
fn halves(word : u32) -> vec2<f32> { return vec2<f32>(); }
fn quick_mul(x : f32, y : f32) -> f32 { return x * y; }
fn quick_fma(x : f32, y : f32, z : f32) -> f32 { return x * y + z; }
fn exact_mul(x : u32, y : u32) -> u32 { return int_mul(x, y); }
