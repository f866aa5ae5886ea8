// A row's next 256 values, in `shown`, as int8 blocks of 32: arithmetic.md, activations. Row r of `acts` has the codes,
// four a word, then a scale a block. All 256 invocations call it; `count` values are there, a multiple of 32.
var<workgroup> shown : array<u32, 256>;
fn nearest(v : u32) -> u32 { return (add(v, 0x4b400000u) - 0x4b400000u) & 255u; }  // ties to even; |v| <= 127
fn quantise(l : u32, count : u32, codes : u32, scales : u32) {
  if (l * 4u < count) {
    let block = l / 8u;
    var top = 0u;
    for (var j = 0u; j < 32u; j++) { top = max(top, magnitude(shown[block * 32u + j])); }
    var d = 0u;
    var inverse = 0u;
    if (top >= INFINITY) {
      d = NAN;
    } else if (top >= 0x03800000u) {  // 2^-120
      d = div(top, 0x42fe0000u);
      inverse = div(0x42fe0000u, top);
    }
    if (l % 8u == 0u) { acts[scales + block] = d; }
    var word = 0u;
    if (inverse != 0u) {
      for (var k = 0u; k < 4u; k++) { word |= nearest(mul(shown[l * 4u + k], inverse)) << (8u * k); }
    }
    acts[codes + l] = word;
  }
}
