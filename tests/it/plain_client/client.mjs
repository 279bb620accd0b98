// A plain client: the five basic events and the rules for them in docs/JSON.md, and nothing that this crate adds to them. It appends
// blocks as they come and does not look at `order`; `block:removed` and `metadata:update` are unknown to it.
//
// A test folds every recording with it and compares the outcome with the library's.

export const initial = { blocks: [], subagents: [] };

/** The state after an event; the old one stays as it is. */
export function reduce(state, event) {
  switch (event.type) {
    case "block:upsert":
      return upsert(state, event.conversationId, event.block);
    case "block:delta":
      return delta(state, event);
    case "subagent:spawned":
      return spawned(state, event);
    case "subagent:completed":
      return completed(state, event);
    case "session:idle":
      return idle(state, event.conversationId);
    default:
      return state;
  }
}

/** Replaces the block with the same id, or appends it. */
function upsert(state, conversationId, block) {
  return inThread(known(state, conversationId), conversationId, (blocks) =>
    blocks.some(({ id }) => id === block.id)
      ? blocks.map((old) => (old.id === block.id ? block : old))
      : [...blocks, block],
  );
}

/** Appends to the text of a block that has one. */
function delta(state, { conversationId, blockId, delta }) {
  if (!delta) return state;
  const append = (block) =>
    block.id === blockId && "content" in block ? { ...block, content: (block.content ?? "") + delta } : block;
  return inThread(state, conversationId, (blocks) => blocks.map(append));
}

/** Shows the subagent in its parent's thread and gives it a thread of its own; once, however often it is said. */
function spawned(state, event) {
  const { toolUseId, prompt, subagentType, description } = event;
  const conversationId = event.context?.conversationId ?? "main";
  const old = state.subagents.find((subagent) => subagent.toolUseId === toolUseId);
  if (old && "prompt" in old) return state;
  const block = {
    id: toolUseId,
    type: "subagent",
    conversationId,
    timestamp: event.context?.timestamp,
    toolUseId,
    name: subagentType,
    description,
    input: prompt,
    status: "running",
  };
  const shown = upsert(state, conversationId, block);
  const subagent = { ...(old ?? { toolUseId, blocks: [] }), status: "running", prompt };
  const others = shown.subagents.filter((other) => other.toolUseId !== toolUseId);
  return { ...shown, subagents: [...others, subagent] };
}

/** Finishes the subagent, in its own thread's record and in its block, wherever that is. */
function completed(state, { toolUseId, agentId, status, output, durationMs }) {
  const end = { status: status === "completed" ? "success" : "error", output, durationMs };
  const finish = (block) =>
    block.type === "subagent" && block.toolUseId === toolUseId ? { ...block, ...end, subagentId: agentId } : block;
  const { blocks, subagents } = known(state, toolUseId);
  return {
    blocks: blocks.map(finish),
    subagents: subagents.map((subagent) => ({
      ...subagent,
      ...(subagent.toolUseId === toolUseId && { ...end, agentId }),
      blocks: subagent.blocks.map(finish),
    })),
  };
}

/** Finishes what is still pending in a thread. */
function idle(state, conversationId) {
  const finish = (block) => (block.status === "pending" ? { ...block, status: "complete" } : block);
  return inThread(state, conversationId, (blocks) => blocks.map(finish));
}

/** The subagent with this thread: by its call first, then by its agent. */
function findSubagent(state, id) {
  return (
    state.subagents.find((subagent) => subagent.toolUseId === id) ??
    state.subagents.find((subagent) => subagent.agentId === id)
  );
}

/** The state with this thread in it: one that was never announced is made. */
function known(state, conversationId) {
  if (conversationId === "main" || findSubagent(state, conversationId)) return state;
  const subagent = { toolUseId: conversationId, blocks: [], status: "running" };
  return { ...state, subagents: [...state.subagents, subagent] };
}

/** The state with a thread's blocks changed; as it is if there is no such thread. */
function inThread(state, conversationId, change) {
  if (conversationId === "main") return { ...state, blocks: change(state.blocks) };
  const found = findSubagent(state, conversationId);
  const subagents = state.subagents.map((subagent) =>
    subagent === found ? { ...subagent, blocks: change(subagent.blocks) } : subagent,
  );
  return { ...state, subagents };
}
