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
/** Whether a block may still change, by any of the words for that. */
const blockStatus = (word) => ({ success: "complete", complete: "complete", error: "error" })[word] ?? "pending";
/** How a subagent's block says it: by how far the subagent got, unless the two differ. */
const subagentWord = (status, runStatus) => (blockStatus(runStatus) === status ? runStatus : status);
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

  /** A block that does not say its place takes that of the one with the same id, or comes last. */
  put(block) {
    if (block.order === undefined) {
      const last = this.blocks.at(-1)?.order ?? [0, "", 0, "", -1];
      const order = this.get(block.id)?.order ?? [...last.slice(0, 4), last[4] + 1];
      block = { ...block, order };
    }
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
      const isSubagent = block.type === "subagent";
      if (blockStatus(block.status) !== "pending" || (isSubagent && !isFinal(block.subagentStatus))) continue;
      this.put({ ...block, status: isSubagent ? subagentWord("complete", block.subagentStatus) : "complete" });
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
  /**
   * By the call that started them:
   * `{toolUseId, agentId?, parentId, name, description?, status, prompt?, output?, durationMs?, thread}`.
   */
  subagents = new Map();

  static from({ blocks, subagents, metadata }) {
    const conversation = new Conversation();
    conversation.main = Thread.from({ blocks, metadata });
    for (const { blocks, metadata, ...subagent } of subagents) {
      conversation.subagents.set(subagent.toolUseId, { ...subagent, thread: Thread.from({ blocks, metadata }) });
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
    const doomed = [subagent.toolUseId];
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
    const isEnded = isFinal(block.subagentStatus);
    const status = isEnded ? block.subagentStatus : later(block.subagentStatus, event.status ?? "running");
    this.#put(target, {
      ...block,
      ...(!isEnded && { status, subagentStatus: status }),
      ...(event.order !== undefined && { order: event.order }),
      ...(event.timestamp !== undefined && { timestamp: event.timestamp }),
      ...(event.metadata !== undefined && { metadata: { ...block.metadata, ...event.metadata } }),
      ...(event.agentId !== undefined && { subagentId: event.agentId }),
      ...(event.subagentType && { name: event.subagentType }),
      ...(event.description !== undefined && { description: event.description }),
      ...(event.prompt && { input: event.prompt }),
    });
  }

  #completed(event) {
    const known = this.subagents.get(event.toolUseId);
    // Wherever its block lives; a thread without a block gets it where the event says.
    const parent = known && this.#find(known.parentId);
    const lives = parent !== undefined && this.#thread(parent)?.get(this.#blockOf(parent, event.toolUseId));
    const target = this.#findOrCreate(lives ? known.parentId : event.conversationId);
    const block = this.#takeSubagentBlock(target, event);
    const { output, durationMs } = event;
    const said = event.status === "completed" ? "success" : event.status;
    // The last end counts, and what is no end does not undo one.
    const status = isFinal(said) ? said : later(block.subagentStatus, said);
    this.#put(target, {
      ...changed(block, { status, subagentStatus: status, ...(isFinal(said) && { output, durationMs }) }),
      ...(event.metadata !== undefined && { metadata: { ...block.metadata, ...event.metadata } }),
      ...(event.agentId !== undefined && { subagentId: event.agentId }),
    });
  }

  /** The id of the thread that an event means: by the call that started it, or else by its agent. */
  #find(conversationId) {
    if (conversationId === MAIN || this.subagents.has(conversationId)) return conversationId;
    return this.#sortedSubagents().find((subagent) => subagent.agentId === conversationId)?.toolUseId;
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
    const known = block.type === "subagent" && this.subagents.get(block.toolUseId);
    if (known && isFinal(known.status) && !isFinal(block.subagentStatus)) {
      // A subagent that has ended stays ended, with its result.
      const { status, output, durationMs } = known;
      block = changed(block, { status, subagentStatus: status, output, durationMs });
    }
    this.#thread(target).put(block);
    // No subagent can have the main thread's name for its own.
    if (block.type !== "subagent" || block.toolUseId === MAIN) return;
    const { toolUseId, subagentId: agentId, name, description, subagentStatus: status, output, durationMs } = block;
    const prompt = typeof block.input === "string" ? block.input : block.input?.prompt;
    // What the block does not say stays.
    const said = Object.entries({ agentId, name: name || undefined, description, prompt, output, durationMs });
    const news = Object.fromEntries(said.filter(([, value]) => value !== undefined));
    const old = this.subagents.get(toolUseId) ?? unannounced(toolUseId);
    this.subagents.set(toolUseId, { ...old, parentId: target, status, ...news });
  }

  /** The id of the block that shows a subagent in a thread: that of its call, but other writers name blocks otherwise. */
  #blockOf(target, toolUseId) {
    const thread = this.#thread(target);
    if (!this.subagents.has(toolUseId) || thread.get(toolUseId)) return toolUseId;
    const shown = thread.blocks.find((block) => block.type === "subagent" && block.toolUseId === toolUseId);
    return shown?.id ?? toolUseId;
  }

  /** The subagent's block as it is, or a new one; taken out of any other thread that it was in. */
  #takeSubagentBlock(target, { toolUseId, order, timestamp }) {
    const here = this.#thread(target).get(this.#blockOf(target, toolUseId));
    if (here?.type === "subagent") return here;
    const parent = this.subagents.get(toolUseId)?.parentId;
    const elsewhere = parent === undefined ? undefined : this.#find(parent);
    if (elsewhere !== undefined && elsewhere !== target) {
      const thread = this.#thread(elsewhere);
      const id = this.#blockOf(elsewhere, toolUseId);
      if (thread.get(id)?.type === "subagent") return changed(thread.remove(id), { order });
    }
    const began = timestamp ?? new Date(order?.[0] ?? 0).toISOString();
    const block = { id: toolUseId, conversationId: target, order, timestamp: began, status: "pending", type: "subagent" };
    return changed({ ...block, toolUseId, subagentStatus: "pending", name: "", input: "" }, { order });
  }

  #sortedSubagents() {
    return [...this.subagents.values()].sort((a, b) => compareText(a.toolUseId, b.toolUseId));
  }
}

/** A subagent of which only the thread's id is known. */
function unannounced(toolUseId) {
  return { toolUseId, parentId: MAIN, name: "", status: "running", thread: new Thread() };
}
