// How fast the exported page packs weights, by type: node bench/repack.mjs
import { pack, rowBytes, tileBytes } from "../src/assay/library/website/repack.js";

const ROWS = 512;
const COLUMNS = 4096;
const SECONDS = 1; // of processor time for each type

for (const type of ["F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"]) {
  const src = new Uint8Array(ROWS * rowBytes(type, COLUMNS)).map((_, i) => (i * 2654435761) >>> 24);
  const dst = new Uint8Array((tileBytes(type, COLUMNS) * ROWS) / 32);
  pack(type, src, ROWS, COLUMNS, dst);
  const began = process.cpuUsage();
  let runs = 0;
  let spent = 0;
  for (; spent < SECONDS; runs++) {
    pack(type, src, ROWS, COLUMNS, dst);
    spent = process.cpuUsage(began).user / 1e6;
  }
  const weights = (runs * ROWS * COLUMNS) / spent / 1e6;
  console.log(`| ${type} | ${((runs * src.length) / spent / 1e6).toFixed(0)} | ${weights.toFixed(0)} |`);
}
