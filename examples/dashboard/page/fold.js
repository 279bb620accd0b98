// Folds the library's conversation events, rule for rule as its reducer does (src/conversation/reducer.rs).
//
// `toJSON` gives what the library serialises, and `Conversation.from` takes it. Blocks are replaced, never changed, so that a view
// can tell by identity what is new.

const MAIN = "main";

/** Compares texts as Rust does, by code point; plain `<` goes by UTF-16 unit. */
function compareText(a, b) {
  for (let i = 0; i < a.length && i < b.length; i++) {
    if (a[i] !== b[i]) {
      const [x, y] = [a.charCodeAt(i), b.charCodeAt(i)];
      const isPair = (unit) => unit >= 0xd800 && unit <= 0xdfff;
      return isPair(x) === isPair(y) ? x - y : isPair(x) ? 1 : -1;
    }
  }
  return a.length - b.length;
}

/** Compares places in a thread: element by element, then by id. */
function comparePlaces(a, b) {
  for (let i = 0; i < a.order.length; i++) {
    const [x, y] = [a.order[i], b.order[i]];
    const order = typeof x === "string" ? compareText(x, y) : x - y;
    if (order !== 0) return order;
  }
  return compareText(a.id, b.id);
}

const isFinal = (runStatus) => runStatus === "success" || runStatus === "error";
const blockStatus = (runStatus) => ({ success: "complete", error: "error" })[runStatus] ?? "pending";
const isEmpty = (input) =>
  input == null || (typeof input === "object" && !Array.isArray(input) && Object.keys(input).length === 0);
const RUN_ORDER = ["pending", "running", "success", "error"];
const later = (a, b) => (RUN_ORDER.indexOf(a) >= RUN_ORDER.indexOf(b) ? a : b);

/** A copy with these fields; those that are undefined are left out. */
function changed(object, fields) {
  const copy = { ...object, ...fields };
  for (const [name, value] of Object.entries(fields)) if (value === undefined) delete copy[name];
  return copy;
}

/** What messages used, added up. */
export function addUp(usages) {
  const sum = { tokens: { input: 0, output: 0, reasoning: 0, cacheRead: 0, cacheWrite: 0 }, cost: 0 };
  for (const { tokens, cost } of usages) {
    for (const kind of Object.keys(sum.tokens)) sum.tokens[kind] += tokens[kind];
    sum.cost += cost;
  }
  return sum;
}

/** One thread: its blocks, and what its messages used. */
class Thread {
  #blocks = new Map();
  #messages = new Map();
  #sorted = null;

  static from({ blocks, metadata }) {
    const thread = new Thread();
    for (const block of blocks) thread.#blocks.set(block.id, block);
    for (const message of metadata.messages) thread.#messages.set(message.messageId, message);
    return thread;
  }

  get(id) {
    return this.#blocks.get(id);
  }

  /** The blocks in order. */
  get blocks() {
    return (this.#sorted ??= [...this.#blocks.values()].sort(comparePlaces));
  }

  put(block) {
    this.#blocks.set(block.id, block);
    this.#sorted = null;
  }

  append(id, delta) {
    const block = this.#blocks.get(id);
    if (block?.type === "assistant_text" || block?.type === "thinking") {
      this.put({ ...block, content: block.content + delta });
    }
  }

  remove(id) {
    const block = this.#blocks.get(id);
    this.#blocks.delete(id);
    this.#sorted = null;
    return block;
  }

  /** Finishes what the end of the turn finishes: all that is pending, but not subagents that still run. */
  finishPending() {
    for (const block of this.#blocks.values()) {
      const stillRuns = block.type === "subagent" && !isFinal(block.subagentStatus);
      if (block.status === "pending" && !stillRuns) this.put({ ...block, status: "complete" });
    }
  }

  setMessage(message) {
    this.#messages.set(message.messageId, message);
  }

  removeMessage(id) {
    this.#messages.delete(id);
  }

  /** What the thread used, always added in the same order: sums of costs depend on it. */
  get metadata() {
    const messages = [...this.#messages.values()].sort((a, b) => compareText(a.messageId, b.messageId));
    const isNewer = (a, b) => a.created - b.created || compareText(a.messageId, b.messageId);
    const model = [...messages].sort(isNewer).at(-1)?.model;
    const metadata = { usage: addUp(messages.map((message) => message.usage)), messages };
    return model === undefined ? metadata : { model, ...metadata };
  }

  toJSON() {
    return { blocks: this.blocks, metadata: this.metadata };
  }
}

/** A conversation as it stands: the main thread, and every subagent below it. */
export class Conversation {
  main = new Thread();
  /** By the call that started them: `{id, agentId?, parentId, name, description?, status, thread}`. */
  subagents = new Map();

  static from({ blocks, subagents, metadata }) {
    const conversation = new Conversation();
    conversation.main = Thread.from({ blocks, metadata });
    for (const { blocks, metadata, ...subagent } of subagents) {
      conversation.subagents.set(subagent.id, { ...subagent, thread: Thread.from({ blocks, metadata }) });
    }
    return conversation;
  }

  /** What the main thread and all subagents used. */
  get totalUsage() {
    const threads = [this.main, ...this.#sortedSubagents().map((subagent) => subagent.thread)];
    return addUp(threads.map((thread) => thread.metadata.usage));
  }

  toJSON() {
    const subagents = this.#sortedSubagents().map(({ thread, ...subagent }) => ({ ...subagent, ...thread.toJSON() }));
    return { ...this.main.toJSON(), subagents };
  }

  apply(event) {
    switch (event.type) {
      case "block:upsert":
        return this.#put(this.#findOrCreate(event.conversationId), event.block);
      case "block:delta":
        return this.#thread(this.#find(event.conversationId))?.append(event.blockId, event.delta);
      case "block:removed":
        return this.#removed(event);
      case "subagent:spawned":
        return this.#spawned(event);
      case "subagent:completed":
        return this.#completed(event);
      case "session:idle":
        return this.#thread(this.#find(event.conversationId))?.finishPending();
      case "metadata:update":
        return this.#used(event);
    }
  }

  #used({ conversationId, messageId, created, model, usage }) {
    if (usage === undefined) {
      this.#thread(this.#find(conversationId))?.removeMessage(messageId);
    } else {
      const thread = this.#thread(this.#findOrCreate(conversationId));
      thread.setMessage(changed({ messageId, created, usage }, { model }));
    }
  }

  #removed({ conversationId, blockId }) {
    const thread = this.#thread(this.#find(conversationId));
    if (!thread) return;
    const block = thread.remove(blockId);
    if (block && block.type !== "subagent") return;
    // A subagent that was never announced has a thread but no block.
    const subagent = this.subagents.get(block ? block.toolUseId : blockId);
    if (!subagent || this.#thread(this.#find(subagent.parentId))?.get(blockId)) return;
    const doomed = [subagent.id];
    while (doomed.length > 0) {
      const id = doomed.pop();
      const blocks = this.subagents.get(id)?.thread.blocks ?? [];
      this.subagents.delete(id);
      doomed.push(...blocks.filter((block) => block.type === "subagent").map((block) => block.toolUseId));
    }
  }

  #spawned(event) {
    const target = this.#findOrCreate(event.conversationId);
    const block = this.#takeSubagentBlock(target, event);
    const status = isFinal(block.subagentStatus)
      ? {}
      : { subagentStatus: later(block.subagentStatus, event.status) };
    if (status.subagentStatus) status.status = blockStatus(status.subagentStatus);
    this.#put(target, {
      ...block,
      ...status,
      order: event.order,
      timestamp: event.timestamp,
      ...(event.agentId !== undefined && { subagentId: event.agentId }),
      ...(event.name && { name: event.name }),
      ...(event.description !== undefined && { description: event.description }),
      ...(!isEmpty(event.input) && { input: event.input }),
    });
  }

  #completed(event) {
    const known = this.subagents.get(event.toolUseId);
    // Wherever its block lives; a thread without a block gets it where the event says.
    const lives = known && this.#thread(this.#find(known.parentId))?.get(event.toolUseId);
    const target = this.#findOrCreate(lives ? known.parentId : event.conversationId);
    const block = this.#takeSubagentBlock(target, event);
    const { status: subagentStatus, output, durationMs } = event;
    const status = blockStatus(subagentStatus);
    this.#put(target, changed(block, { status, subagentStatus, output, durationMs }));
  }

  /** The id of the thread that an event means: by the call that started it, or else by its agent. */
  #find(conversationId) {
    if (conversationId === MAIN || this.subagents.has(conversationId)) return conversationId;
    return this.#sortedSubagents().find((subagent) => subagent.agentId === conversationId)?.id;
  }

  /** The same; an unknown one becomes the thread of a subagent that will be announced later. */
  #findOrCreate(conversationId) {
    const found = this.#find(conversationId);
    if (found !== undefined) return found;
    this.subagents.set(conversationId, unannounced(conversationId));
    return conversationId;
  }

  #thread(id) {
    return id === MAIN ? this.main : this.subagents.get(id)?.thread;
  }

  #put(target, block) {
    if (block.conversationId !== target) block = { ...block, conversationId: target };
    this.#thread(target).put(block);
    // No subagent can have the main thread's name for its own.
    if (block.type !== "subagent" || block.toolUseId === MAIN) return;
    const { toolUseId: id, subagentId: agentId, name, description, subagentStatus: status } = block;
    const old = this.subagents.get(id) ?? unannounced(id);
    this.subagents.set(id, changed(old, { parentId: target, agentId, name, description, status }));
  }

  /** The subagent's block as it is, or a new one; taken out of any other thread that it was in. */
  #takeSubagentBlock(target, { toolUseId, order, timestamp }) {
    const here = this.#thread(target).get(toolUseId);
    if (here?.type === "subagent") return here;
    const parent = this.subagents.get(toolUseId)?.parentId;
    const elsewhere = parent === undefined ? undefined : this.#find(parent);
    if (elsewhere !== undefined && elsewhere !== target) {
      const thread = this.#thread(elsewhere);
      if (thread.get(toolUseId)?.type === "subagent") return thread.remove(toolUseId);
    }
    return {
      id: toolUseId,
      conversationId: target,
      order,
      timestamp,
      status: "pending",
      type: "subagent",
      toolUseId,
      subagentStatus: "pending",
      name: "",
      input: null,
    };
  }

  #sortedSubagents() {
    return [...this.subagents.values()].sort((a, b) => compareText(a.id, b.id));
  }
}

/** A subagent of which only the thread's id is known. */
function unannounced(id) {
  return { id, parentId: MAIN, name: "", status: "running", thread: new Thread() };
}
