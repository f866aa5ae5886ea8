// Fuzzes the page's Markdown, mathematics and code colours in Node: no stall, no overflow, no unsafe element.
//
//   node fuzz/markdown.mjs --inputs 20000            so many texts
//   node fuzz/markdown.mjs --minutes 2 --seed 7      as long
//   node fuzz/markdown.mjs --families 200000         each known hostile shape once, at this size
//
// The last line is a JSON object of counts, as the other fuzzers print. A text that fails is kept in build/fuzz.

import { mkdirSync, writeFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { parse } from "../src/assay/serve/page/blocks.js";
import { Growing } from "../src/assay/serve/page/growing.js";
import { highlight } from "../src/assay/serve/page/highlight.js";
import { safe } from "../src/assay/serve/page/links.js";
import { ATTRIBUTES, MATH_TAGS, TAGS } from "../src/assay/serve/page/tree.js";

const STALL = 1000; // milliseconds of processor time for one text, and one more for each 100 characters; an honest one takes less than ten
const DEEPEST = 120; // nested nodes; a browser's layout follows thousands
const AMPLIFIED = 16; // nodes, text and attributes of a tree, for each character of its text

// Random numbers from a seed (mulberry32), so that a failure can be made again.
function generator(seed) {
  let state = seed >>> 0;
  const random = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  return { random, below: (n) => Math.floor(random() * n), of: (list) => list[Math.floor(random() * list.length)] };
}

const MARKS = ["`", "``", "```", "~~~", "*", "**", "_", "__", "~~", "#", "##", ">", "> ", "- ", "* ", "+ ", "1. ", "2) ", "[", "]", "(", ")", "](", "![",
  "<", ">", "</", "&", "&amp;", "&#60;", "&#x3c;", "&lt;", "\\", "\\(", "\\)", "\\[", "\\]", "$", "$$", "|", "|---|", ":-:", "---", "===", "***", "\n", "\n\n", "\r\n", "\r",
  " ", "    ", "\t", "a", "b c", "0", "é", "日", "🦊", "\ud83e", "\u0000", "\u202e", "\u00a0", "http://", "https://a.b", "mailto:a@b", "javascript:", "data:text/html,",
  "<script>", "</script>", "<img src=x onerror=alert(1)>", "onclick=", "<br>", "[x](javascript:alert(1))", "[x](https://a.b \"t\")", "<https://a.b>", "[ ] ", "- [x] "];
const TEX = ["\\frac", "\\sqrt", "{", "}", "^", "_", "\\left(", "\\right)", "\\begin{pmatrix}", "\\end{pmatrix}", "\\begin{aligned}", "\\end{aligned}", "\\begin{cases}", "\\end{x}", "&", "\\\\", "\\sum", "\\int", "\\lim",
  "x", "12", "+", "-", "\\alpha", "\\text{", "\\mathbb", "\\hat", "\\unknown", "'", "[", "]", "\\,", "|", "\\{", "\\left", "\\right", "\\overset", "\\underbrace", "\\constructor", "\\__proto__", "\\toString"];
const CODE = ["'", '"', '"""', "`", "//", "/*", "*/", "#", "<!--", "-->", "def ", "x", "(", ")", "0x1", "1e9", "\n", "\\", "<b", "/>", "-", "--", "é", "select", " ", "${", "}"];
const LANGUAGES = ["python", "js", "c", "rust", "bash", "sql", "html", "css", "yaml", "constructor", "__proto__", "", "toString", "py", "go"];

// A text whose marks repeat, nest or grow: the shapes that make a careless parser slow.
function hostile(r, size) {
  const a = r.of(MARKS), b = r.of(MARKS), c = r.of(MARKS);
  const n = Math.max(1, Math.floor(size / (a.length + b.length)));
  switch (r.below(9)) {
    case 0: return (a + b).repeat(n);
    case 1: return a.repeat(n) + c + b.repeat(n);
    case 2: return Array.from({ length: Math.min(Math.floor(Math.sqrt(size)), 400) }, (_, i) => a.repeat(i) + b).join("");
    case 3: return a + " ".repeat(size) + b;
    case 4: return Array.from({ length: Math.min(n, 300) }, (_, i) => " ".repeat(2 * (i % 80)) + a + b).join("\n");
    case 5: return (a + b + "\n").repeat(n);
    case 6: return `$${r.of(TEX).repeat(n)}${r.of(TEX).repeat(r.below(40))}$`;
    case 7: return `${a + "x"}\n${b.repeat(n)}\n${(c + "\n").repeat(Math.floor(n / 2))}`;
    default: return (a + "x " + b + "y" + c).repeat(n);
  }
}

const mixed = (r, list, n) => Array.from({ length: n }, () => r.of(list)).join("");

function make(r, size) {
  switch (r.below(8)) {
    case 0: return hostile(r, size);
    case 1: return `$$${mixed(r, TEX, r.below(60))}$$ \\(${mixed(r, TEX, r.below(30))}\\)`;
    case 2: return `\`\`\`${r.of(LANGUAGES)}\n${mixed(r, CODE, r.below(80))}\n${r.of(["```", ""])}`;
    case 3: return Array.from({ length: r.below(12) }, () => " ".repeat(r.below(7)) + r.of(MARKS) + mixed(r, MARKS, r.below(6))).join("\n");
    case 4: return `|${mixed(r, MARKS, 4)}|b|\n|-|-|\n${Array.from({ length: r.below(5) }, () => `|${mixed(r, MARKS, 3)}|`).join("\n")}`;
    default: return mixed(r, MARKS, r.below(60));
  }
}

const escape = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");

// Walk a tree without recursion: each node must be of the lists, no deeper than DEEPEST; gives its size.
function inspect(nodes) {
  let size = 0;
  const open = nodes.map((node) => [node, 1]);
  while (open.length) {
    const [node, depth] = open.pop();
    size += 1;
    if (typeof node === "string") { size += node.length; continue; }
    if (depth > DEEPEST) throw new Error(`too deep: ${depth}`);
    if (!TAGS.has(node.tag) && !MATH_TAGS.has(node.tag)) throw new Error(`tag ${node.tag}`);
    for (const [name, value] of Object.entries(node.attrs)) {
      if (/^on/i.test(name)) throw new Error(`handler ${name}`);
      if (name === "href" && !safe(value)) throw new Error(`address ${value}`);
      if (name !== "href" && ATTRIBUTES.has(name) && /javascript:/i.test(String(value)) && name !== "alttext") throw new Error(`attribute ${name}`);
      size += String(value).length;
    }
    for (const kid of node.kids) open.push([kid, depth + 1]);
  }
  return size;
}

const html = (node) => typeof node === "string" ? escape(node)
  : `<${node.tag}${Object.entries(node.attrs).filter(([name]) => ATTRIBUTES.has(name)).map(([name, value]) => ` ${name}="${escape(String(value))}"`).join("")}>${node.kids.map(html).join("")}</${node.tag}>`;

// What streaming draws in the end is what the whole text gives, for work that is linear in it.
function streamed(r, text, whole) {
  const drawn = [];
  const growing = new Growing({ settle: (nodes) => drawn.push(...nodes), tail: () => {}, append: () => {} });
  let pushes = 0;
  for (let at = 0; at < text.length; pushes += 1) {
    const end = at + 1 + r.below(Math.max(8, text.length / 20));
    growing.push(text.slice(at, end));
    at = end;
  }
  growing.end();
  if (JSON.stringify(drawn) !== whole) throw new Error("streaming draws something else");
  if (growing.work > 2000 * pushes + 8 * text.length + 16) throw new Error(`streaming parsed ${growing.work} characters of ${text.length}`);
}

function check(r, text, longest) {
  const begun = process.cpuUsage();
  const tree = parse(text);
  for (const node of tree) if (node.tag === "pre") highlight(node.kids[0], node.attrs.language);
  highlight(text, r.of(LANGUAGES));
  const used = process.cpuUsage(begun);
  const took = (used.user + used.system) / 1000;
  longest.ms = Math.max(longest.ms, took);
  if (took > STALL + text.length / 100) throw new Error(`stall: ${took.toFixed(0)} ms for ${text.length} characters`);
  const size = inspect(tree);
  if (size > AMPLIFIED * text.length + 64) throw new Error(`amplified: ${size} of ${text.length}`);
  const written = tree.map(html).join("");
  if (/<(?!\/?[a-z]+[\d]?[ >])/.test(written) || /<script|<img|<iframe|<style/i.test(written)) throw new Error("unsafe HTML");
  streamed(r, text, JSON.stringify(tree));
}

// Shapes that froze the page, and their neighbours: n is about the length of the text.
const FAMILIES = {
  "backtick runs of growing length": (n) => Array.from({ length: Math.floor(Math.sqrt(2 * n)) }, (_, i) => "`".repeat(i)).join(" "),
  "a heading with spaces": (n) => `# a${" ".repeat(n)}b`,
  "quotes in quotes": (n) => ">".repeat(n),
  "quotes and lists": (n) => "> - ".repeat(n / 4),
  "lists in one line": (n) => "- ".repeat(n / 2),
  "lists by indentation": (n) => Array.from({ length: Math.floor(Math.sqrt(n)) }, (_, i) => `${" ".repeat(2 * i)}- a`).join("\n"),
  "blank lines in a list": (n) => `- a\n${"\n".repeat(n)}b`,
  "emphasis that opens": (n) => "*a ".repeat(n / 3),
  "emphasis that nests": (n) => "*a ".repeat(n / 5) + "a*".repeat(n / 5),
  "emphasis that crosses": (n) => "*a_".repeat(n / 3),
  "strong in strong": (n) => "**a ".repeat(n / 8) + " b**".repeat(n / 8),
  "a run of stars": (n) => "*".repeat(n),
  "brackets": (n) => "[".repeat(n / 2) + "]".repeat(n / 2),
  "brackets and links": (n) => "[".repeat(n / 2) + "a](b)".repeat(n / 10),
  "links without end": (n) => "[a](b".repeat(n / 5),
  "titles without end": (n) => '[a](b "'.repeat(n / 7),
  "a table of pipes": (n) => `${"|a".repeat(n / 6)}\n${"|-".repeat(n / 6)}\n${"|\n".repeat(n / 6)}`,
  "table rules": (n) => "|-|-|\n".repeat(n / 6),
  "entities": (n) => "&#".repeat(n / 2),
  "angles": (n) => "<http://a".repeat(n / 9),
  "mathematics that opens": (n) => "\\(".repeat(n / 2),
  "display mathematics that opens": (n) => "\\[\n".repeat(n / 3),
  "dollars": (n) => "$a".repeat(n / 2),
  "fractions in fractions": (n) => `$${"\\frac{".repeat(500)}$`.repeat(Math.max(1, n / 3500)),
  "primes": (n) => `$x${"'".repeat(3000)}$`.repeat(Math.max(1, n / 3000)),
  "a fence with spaces": (n) => `\`\`\`${" ".repeat(n)}\``,
  "a fence without end": (n) => `\`\`\`python\n${"'".repeat(n)}`,
  "code comments": (n) => `\`\`\`c\n${"/*".repeat(n / 2)}`,
  "bare addresses": (n) => "https://a.b/(".repeat(n / 13),
};

function families(size) {
  const longest = { ms: 0 };
  for (const [name, make] of Object.entries(FAMILIES)) {
    try { check(generator(1), make(size), longest); } catch (error) { console.log(`${name}: ${error.message}`); process.exitCode = 1; }
  }
  console.log(JSON.stringify({ families: Object.keys(FAMILIES).length, size, longest_ms: Math.round(longest.ms) }));
}

const { values } = parseArgs({ options: { inputs: { type: "string" }, minutes: { type: "string" }, seed: { type: "string" }, size: { type: "string" }, families: { type: "string" } } });
if (values.families) { families(Number(values.families)); process.exit(); }
const seed = Number(values.seed ?? Math.floor(Math.random() * 2 ** 31));
const inputs = values.inputs ? Number(values.inputs) : Infinity;
const until = performance.now() + Number(values.minutes ?? 2) * 60000;
const counts = { inputs: 0 };
const longest = { ms: 0 };
while (counts.inputs < inputs && (inputs < Infinity || performance.now() < until)) {
  const r = generator(seed + counts.inputs * 7919);
  const large = counts.inputs % 500 === 499; // most texts are small and quick; each 500th is long
  const text = make(r, large ? Number(values.size ?? 60000) : 1 + r.below(300));
  const whole = large && r.below(2) ? hostile(r, Number(values.size ?? 60000)) : text;
  counts.inputs += 1;
  try {
    check(r, whole, longest);
  } catch (error) {
    const kind = `fault ${error.message.split(":")[0].slice(0, 60)}`;
    counts[kind] = (counts[kind] ?? 0) + 1;
    mkdirSync("build/fuzz", { recursive: true });
    const name = `build/fuzz/markdown-${seed}-${counts.inputs}`;
    writeFileSync(`${name}.input`, JSON.stringify(whole));
    writeFileSync(`${name}.trace`, String(error.stack));
    console.log(`${name}: ${error.message}`);
  }
}
console.log(`markdown   seed ${seed}, longest ${longest.ms.toFixed(0)} ms`);
console.log(JSON.stringify(counts));
process.exit(Object.keys(counts).length > 1 ? 1 : 0);
