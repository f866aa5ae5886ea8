// Code in colours: notes, texts, numbers, words of the language, names that are called. One pass, no look back.

const LONGEST = 60000; // characters; longer code stays plain

const words = (text) => new Set(text.split(" "));
const C_WORDS = "if else for while do switch case default break continue return goto struct enum union typedef static const void int char float double long short unsigned signed bool true false auto extern sizeof inline volatile";
const CURLY = { line: ["//"], block: ["/*", "*/"], quotes: "\"'" };
const LANGUAGES = {
  python: { line: ["#"], quotes: "\"'", triple: true, words: words("and as assert async await break class continue def del elif else except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield match case None True False self") },
  js: { ...CURLY, quotes: "\"'`", words: words("async await break case catch class const continue default delete do else export extends false finally for from function if import in instanceof interface let new null of return static super switch this throw true try type typeof undefined var void while yield enum implements readonly as") },
  c: { ...CURLY, line: ["//"], words: words(`${C_WORDS} class namespace template typename public private protected virtual override new delete this nullptr using try catch throw constexpr noexcept include define ifdef ifndef endif pragma`) },
  java: { ...CURLY, words: words(`${C_WORDS} class interface extends implements public private protected final abstract new this super null import package throws throw try catch finally var record sealed val fun when object override namespace using string var get set async await in is out foreach`) },
  go: { ...CURLY, quotes: "\"'`", words: words("break case chan const continue default defer else fallthrough for func go goto if import interface map package range return select struct switch type var nil true false string int int64 float64 bool byte error any make append len") },
  rust: { ...CURLY, quotes: "\"", words: words("as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while i32 u32 i64 u64 usize f32 f64 str String bool Vec Option Some None Result Ok Err") },
  swift: { ...CURLY, quotes: "\"", words: words("class struct enum protocol extension func var let if else guard for while repeat switch case default break continue return import init self nil true false in throws try catch async await private public static") },
  shell: { line: ["#"], quotes: "\"'", words: words("if then else elif fi for while do done case esac in function return export local set unset echo cd exit source sudo read test") },
  sql: { line: ["--"], block: ["/*", "*/"], quotes: "'\"", plain: true, words: words("select from where insert into values update set delete create table drop alter join left right inner outer full on group by order having limit offset as and or not null is in like between union all distinct case when then else end primary key foreign references index view with exists count sum avg min max int integer text varchar date timestamp") },
  ruby: { line: ["#"], quotes: "\"'", words: words("def end class module if elsif else unless while until do return yield begin rescue ensure nil true false self require puts attr_accessor new in then case when") },
  lua: { line: ["--"], quotes: "\"'", words: words("and break do else elseif end false for function goto if in local nil not or repeat return then true until while") },
  data: { line: ["#"], quotes: "\"'", words: words("true false null yes no on off") },
  markup: { block: ["<!--", "-->"], quotes: "\"'", markup: true, words: words("") },
  style: { block: ["/*", "*/"], quotes: "\"'", words: words("important media import from to keyframes supports root hover focus") },
};
const ALIASES = {
  py: "python", python3: "python", ipython: "python", javascript: "js", jsx: "js", ts: "js", tsx: "js", typescript: "js", node: "js", mjs: "js",
  cpp: "c", "c++": "c", cc: "c", h: "c", hpp: "c", cuda: "c", cu: "c", glsl: "c", "c#": "java", cs: "java", csharp: "java", kotlin: "java", kt: "java", scala: "java", php: "js", dart: "java",
  golang: "go", rs: "rust", bash: "shell", sh: "shell", zsh: "shell", console: "shell", powershell: "shell", dockerfile: "shell", makefile: "shell",
  rb: "ruby", json: "data", jsonl: "data", yaml: "data", yml: "data", toml: "data", ini: "data", html: "markup", xml: "markup", svg: "markup", vue: "markup", css: "style", scss: "style", less: "style",
  postgresql: "sql", mysql: "sql", sqlite: "sql",
};

const WORD = /[\p{L}_$][\p{L}\p{N}_$]*/uy;
const NUMBER = /0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?/y;
const PLAIN = /[^\p{L}\p{N}_$"'`#/*<\-]+/uy;

function languageOf(name) {
  const key = name.toLowerCase();
  const full = Object.hasOwn(ALIASES, key) ? ALIASES[key] : key;
  return Object.hasOwn(LANGUAGES, full) ? LANGUAGES[full] : null;
}

// Where a quoted text that begins at `at` ends: at its quote, or at the end of its line.
function quoted(text, at, how) {
  const quote = text[at];
  if (how.triple && text.startsWith(quote.repeat(3), at)) {
    const end = text.indexOf(quote.repeat(3), at + 3);
    return end < 0 ? text.length : end + 3;
  }
  let end = at + 1;
  for (; end < text.length && text[end] !== quote; end += 1) {
    if (text[end] === "\\" && !how.plain) end += 1;
    else if (text[end] === "\n" && quote !== "`") return end;
  }
  return Math.min(end + 1, text.length);
}

function next(text, at, how) {
  const c = text[at];
  if (how.line?.some((mark) => text.startsWith(mark, at)) && !(c === "#" && /[\w$&]/.test(text[at - 1] ?? " "))) {
    const end = text.indexOf("\n", at);
    return ["note", end < 0 ? text.length : end];
  }
  if (how.block && text.startsWith(how.block[0], at)) {
    const end = text.indexOf(how.block[1], at + how.block[0].length);
    return ["note", end < 0 ? text.length : end + how.block[1].length];
  }
  if (how.quotes.includes(c) && !(c === "'" && /[\p{L}\p{N}]/u.test(text[at - 1] ?? " "))) return ["text", quoted(text, at, how)];
  NUMBER.lastIndex = at;
  if (c >= "0" && c <= "9" && NUMBER.exec(text)) return ["number", NUMBER.lastIndex];
  WORD.lastIndex = at;
  const word = WORD.exec(text)?.[0];
  if (word) {
    const end = WORD.lastIndex;
    if (how.words.has(how.plain ? word.toLowerCase() : word)) return ["word", end];
    if (how.markup ? text[at - 1] === "<" || text[at - 1] === "/" : text[end] === "(") return ["name", end];
    return ["", end];
  }
  PLAIN.lastIndex = at;
  return ["", PLAIN.exec(text) ? PLAIN.lastIndex : at + (text.codePointAt(at) > 0xffff ? 2 : 1)];
}

// Pieces of code: strings, and {tag, attrs, kids} for what has a colour.
export function highlight(text, language) {
  const how = languageOf(language ?? "");
  if (!how || text.length > LONGEST) return [text];
  const pieces = [];
  for (let at = 0; at < text.length;) {
    const [kind, end] = next(text, at, how);
    const piece = text.slice(at, end);
    if (kind) pieces.push({ tag: "span", attrs: { class: `code-${kind}` }, kids: [piece] });
    else if (typeof pieces.at(-1) === "string") pieces[pieces.length - 1] += piece;
    else pieces.push(piece);
    at = end;
  }
  return pieces;
}
