// A row's next 256 values, in `shown`, as int8 blocks of 32: arithmetic.md, activations. Row r of `acts` has the codes,
// four a word; then for each block, in lists of `blocks` words padded to a multiple of four: the scale d, d for products
// without tests (NaN if it is wild), and d times the sum of the codes (NaN as well). All 256 invocations call it; `count`
// values are there, a multiple of 32. A block's codes begin `code_step` words, its floats `scale_step` words after those
// of the block before.
var<workgroup> shown : array<u32, 256>;
var<workgroup> largest : array<u32, 64>;
var<workgroup> coded : array<u32, 64>;
fn nearest(v : u32) -> u32 { return (v - 0x4b400000u) & 255u; }  // of v + 12582912: ties to even; |v| <= 127
fn quantise(l : u32, count : u32, codes : u32, scales : u32, blocks : u32) {
  quantise_apart(l, count, codes, scales, blocks, 8u, 1u);
}
fn quantise_apart(l : u32, count : u32, codes : u32, scales : u32, blocks : u32, code_step : u32, scale_step : u32) {
  let here = l * 4u < count;
  if (here) {
    largest[l] = max(max(magnitude(shown[4u * l]), magnitude(shown[4u * l + 1u])),
                     max(magnitude(shown[4u * l + 2u]), magnitude(shown[4u * l + 3u])));
  }
  workgroupBarrier();
  var d = 0u;
  if (here) {
    var top = 0u;
    for (var j = 0u; j < 8u; j++) { top = max(top, largest[(l & 56u) + j]); }
    var word = 0u;
    if (top >= INFINITY) {
      d = NAN;
    } else if (top >= 0x03800000u) {  // 2^-120
      d = div(top, 0x42fe0000u);
      let inverse = div(0x42fe0000u, top);
      if (QUICK && top >= 0x12800000u) {  // 2^-90: a subnormal value gives 0 even where it is flushed
        for (var k = 0u; k < 4u; k++) {
          let v = quick_mul(bitcast<f32>(shown[4u * l + k]), bitcast<f32>(inverse));
          word |= nearest(bitcast<u32>(quick_add(v, 12582912.0))) << (8u * k);
        }
      } else {
        for (var k = 0u; k < 4u; k++) {
          word |= nearest(add(mul(shown[4u * l + k], inverse), 0x4b400000u)) << (8u * k);
        }
      }
    }
    coded[l] = word;
    acts[codes + (l / 8u) * code_step + l % 8u] = word;
  }
  workgroupBarrier();
  if (here && l % 8u == 0u) {
    var n = 0;
    for (var j = 0u; j < 8u; j++) { n += dot4I8Packed(coded[l + j], 0x01010101u); }
    let at = scales + (l / 8u) * scale_step;
    let list = (blocks + 3u) / 4u * 4u;
    let out = wild(d);
    acts[at] = d;
    acts[at + list] = select(d, NAN, out);
    acts[at + 2u * list] = NAN;
    if (!out) { acts[at + 2u * list] = mul(d, bitcast<u32>(f32(n))); }
  }
}
