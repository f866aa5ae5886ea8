// Conversations, kept in this browser (IndexedDB) and nowhere else.
//
// A conversation is a tree: {id, title, changed, nodes: {id: {id, parent, role, content, ...}}, leaf}. What is shown is
// the way from the root to the leaf; an edited message or another answer is a further child of the same parent.

const open = new Promise((done) => {
  try {
    const asked = indexedDB.open("assay", 1);
    asked.onupgradeneeded = () => asked.result.createObjectStore("conversations", { keyPath: "id" });
    asked.onsuccess = () => done(asked.result);
    asked.onerror = () => done(null); // a private window keeps nothing
  } catch { done(null); }
});

async function store(mode, work) {
  const base = await open;
  if (!base) return null;
  return new Promise((done) => {
    const asked = work(base.transaction("conversations", mode).objectStore("conversations"));
    asked.onsuccess = () => done(asked.result);
    asked.onerror = () => done(null);
  });
}

export const all = async () => ((await store("readonly", (s) => s.getAll())) ?? []).sort((a, b) => b.changed - a.changed);
export const keep = (conversation) => store("readwrite", (s) => s.put({ ...conversation, changed: Date.now() }));
export const remove = (id) => store("readwrite", (s) => s.delete(id));

export const fresh = () => ({ id: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`, title: "", changed: Date.now(), nodes: {}, leaf: null });

export function add(conversation, node) {
  const id = `${Object.keys(conversation.nodes).length}-${Date.now().toString(36)}`;
  conversation.nodes[id] = { id, parent: conversation.leaf, ...node };
  conversation.leaf = id;
  if (!conversation.title && node.role === "user") conversation.title = node.content.trim().slice(0, 60);
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
