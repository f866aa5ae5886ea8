// Conversations, kept in this browser (IndexedDB) and nowhere else.
//
// A conversation is a tree: {id, title, changed, nodes: {id: {id, parent, role, content, ...}}, leaf}. What is shown is
// the way from the root to the leaf; an edited message or another answer is a further child of the same parent.

const SEARCHED = 20_000; // characters of a conversation that a search reads

// What the list needs: conversations themselves hold every token's alternatives, and are read one at a time.
const entry = ({ id, title, changed, nodes }) => ({ id, title, changed, text: Object.values(nodes).map((node) => node.content).join("\n").slice(0, SEARCHED).toLowerCase() });

function upgrade(base, transaction, before) {
  if (before < 1) base.createObjectStore("conversations", { keyPath: "id" });
  const titles = base.createObjectStore("titles", { keyPath: "id" });
  const kept = transaction.objectStore("conversations").openCursor();
  kept.onsuccess = () => {
    const at = kept.result;
    if (at) { titles.put(entry(at.value)); at.continue(); }
  };
}

const open = new Promise((done) => {
  try {
    const asked = indexedDB.open("assay", 2);
    asked.onupgradeneeded = (event) => upgrade(asked.result, asked.transaction, event.oldVersion);
    asked.onsuccess = () => { asked.result.onversionchange = () => asked.result.close(); done(asked.result); };
    asked.onerror = () => done(null); // a private window keeps nothing
    asked.onblocked = () => done(null); // another tab holds an older form
  } catch { done(null); }
});

// `work` gets both stores and may give a request, whose result comes back when all is written.
async function store(mode, work) {
  const base = await open;
  if (!base) return null;
  return new Promise((done) => {
    const transaction = base.transaction(["conversations", "titles"], mode);
    const asked = work(transaction.objectStore("conversations"), transaction.objectStore("titles"));
    transaction.oncomplete = () => done(asked?.result ?? null);
    transaction.onerror = transaction.onabort = () => done(null);
  });
}

export const titles = async () => ((await store("readonly", (_, t) => t.getAll())) ?? []).sort((a, b) => b.changed - a.changed);
export const get = (id) => store("readonly", (c) => c.get(id));
export const put = (conversation) => store("readwrite", (c, t) => { c.put(conversation); t.put(entry(conversation)); });
export const keep = (conversation) => { conversation.changed = Date.now(); return put(conversation); };
export const remove = (id) => store("readwrite", (c, t) => { c.delete(id); t.delete(id); });
export const newest = async () => { const [first] = await titles(); return first ? get(first.id) : null; };

export const fresh = () => ({ id: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`, title: "", changed: Date.now(), nodes: {}, leaf: null });

export function add(conversation, node) {
  const id = `${Object.keys(conversation.nodes).length}-${Date.now().toString(36)}`;
  conversation.nodes[id] = { id, parent: conversation.leaf, ...node };
  conversation.leaf = id;
  if (!conversation.title && node.role === "user") conversation.title = (node.content.trim() || node.files?.[0]?.name || "").slice(0, 60);
  return conversation.nodes[id];
}

// The nodes from the root to the leaf.
export function way(conversation) {
  const found = [];
  for (let id = conversation.leaf; id; id = conversation.nodes[id]?.parent) found.unshift(conversation.nodes[id]);
  return found;
}

export const siblings = (conversation, node) => Object.values(conversation.nodes).filter((n) => n.parent === node.parent);

// Show another branch: down from this node along the newest children.
export function follow(conversation, id) {
  for (let next = id; next;) {
    conversation.leaf = next;
    next = Object.values(conversation.nodes).filter((n) => n.parent === next).at(-1)?.id;
  }
}
