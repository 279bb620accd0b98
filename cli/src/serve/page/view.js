// Shows tasks as cards. All text goes into the page as text: models and tools write what they like.

/** An element with properties, attributes (of names with `-`, and `role`) and children. */
function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

/** Changes a text only if it differs, so that selections survive. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Makes the children of `parent` show `items`, each by a node of its own that stays for as long as the item does. */
function reconcile(parent, items, make) {
  const old = new Map([...parent.children].map((node) => [node.item, node]));
  let at = parent.firstElementChild;
  for (const [key, item] of items) {
    const node = old.get(key) ?? Object.assign(make(item), { item: key });
    old.delete(key);
    if (node === at) at = at.nextElementSibling;
    else parent.insertBefore(node, at);
    node.show?.(item);
  }
  for (const node of old.values()) node.remove();
}

export function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const [minutes, seconds] = [Math.floor(ms / 60_000), Math.floor(ms / 1000) % 60];
  return minutes < 60
    ? `${minutes} m ${String(seconds).padStart(2, "0")} s`
    : `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} m`;
}

/** What something used, in a few words. */
export function spent({ tokens, cost }) {
  const total = Object.values(tokens).reduce((sum, count) => sum + count, 0);
  const count = total < 10_000 ? total.toLocaleString("en") : `${(total / 1000).toFixed(total < 100_000 ? 1 : 0)}k`;
  return `${count} tokens · $${cost === 0 ? 0 : cost.toFixed(4)}`;
}

/** The argument of a call that says most about it. */
function argument(input) {
  if (input == null || typeof input !== "object") return "";
  const telling = ["command", "filePath", "pattern", "url", "query", "description", "path"];
  const name = telling.find((name) => typeof input[name] === "string");
  if (name) return input[name];
  const first = input.questions?.[0]?.question;
  return typeof first === "string" ? first : Object.keys(input).length === 0 ? "" : JSON.stringify(input);
}

const MARKS = {
  pending: ["", "waiting"],
  running: ["", "running"],
  success: ["✓", "succeeded"],
  error: ["✗", "failed"],
};

/** How something that runs is doing. */
function mark() {
  const [glyph, words] = [el("span", { "aria-hidden": "true" }), el("span", { className: "unseen" })];
  const element = el("span", { className: "mark" }, glyph, words);
  element.show = (status) => {
    element.dataset.status = status;
    say(glyph, MARKS[status][0]);
    say(words, MARKS[status][1]);
  };
  return element;
}

/** Longer outputs are cut: a page that holds megabytes of them is of no use to anybody. */
const MAX_OUTPUT = 20_000;
const cut = (text) =>
  text.length <= MAX_OUTPUT ? text : `${text.slice(0, MAX_OUTPUT)}\n… ${text.length - MAX_OUTPUT} more characters`;

/** What a tool returned; mostly text already. */
const outputText = (output) =>
  typeof output === "string" ? output : output == null ? "" : JSON.stringify(output, null, 2);

/** Lets a node show its block, and its tool's result, when one of them is another than before. */
function showing(node, show) {
  let last = {};
  node.show = (item) => {
    if (item.block !== last.block || item.result !== last.result) show(item);
    last = item;
  };
  return node;
}

const makers = {
  user_message: () => textBlock("user"),
  assistant_text: () => textBlock("text"),
  system: () => textBlock("system"),
  error: () => textBlock("failure"),
  thinking() {
    const [preview, body] = [el("span", { className: "preview" }), el("div", { className: "body" })];
    const summary = el("summary", {}, el("span", { className: "label" }, "Thinking"), preview);
    const details = el("details", { className: "thinking" }, summary, body);
    return showing(details, ({ block }) => {
      details.dataset.status = block.status;
      const text = block.content.trim();
      say(preview, text.split("\n", 1)[0].slice(0, 200));
      say(body, text);
    });
  },
  tool_use() {
    const parts = { mark: mark(), name: el("code", { className: "tool-name" }) };
    const [what, time, wrong] = ["what", "time", "wrong"].map((className) => el("span", { className }));
    const output = el("pre", { className: "body", tabIndex: 0 });
    const summary = el("summary", {}, parts.mark, parts.name, what, time, wrong);
    const details = el("details", { className: "tool" }, summary, output);
    return showing(details, ({ block, result }) => {
      details.dataset.status = block.toolStatus;
      parts.mark.show(block.toolStatus);
      say(parts.name, block.name);
      say(what, argument(block.input) || block.title || "");
      say(time, result?.durationMs === undefined ? "" : duration(result.durationMs));
      const returned = outputText(result?.output);
      say(wrong, result?.isError ? returned.trim().split("\n", 1)[0].slice(0, 300) : "");
      say(output, result ? cut(returned) || "no output" : "no output yet");
    });
  },
  tool_result() {
    const pre = el("pre", { className: "body", tabIndex: 0 });
    return showing(pre, ({ block }) => say(pre, cut(outputText(block.output))));
  },
  subagent() {
    const parts = { mark: mark(), name: el("strong") };
    const [what, time] = ["what", "time"].map((className) => el("span", { className }));
    const thread = el("div", { className: "thread" });
    const summary = el("summary", {}, parts.mark, parts.name, what, time);
    const details = el("details", { className: "subagent", open: true }, summary, thread);
    details.show = ({ block, conversation, depth }) => {
      details.dataset.status = block.subagentStatus;
      parts.mark.show(block.subagentStatus);
      say(parts.name, `@${block.name || "subagent"}`);
      say(what, block.description ?? "");
      say(time, block.durationMs === undefined ? "" : duration(block.durationMs));
      const below = conversation.subagents.get(block.toolUseId);
      // Folded from arbitrary events, a conversation could even contain itself.
      if (below && depth < 8) showThread(thread, below.thread, conversation, depth + 1);
    };
    return details;
  },
};

function textBlock(className) {
  const element = el("div", { className });
  return showing(element, ({ block }) => {
    element.dataset.status = block.status;
    say(element, (block.type === "system" ? block.message : block.content).trim());
  });
}

/** Shows a thread's blocks; a tool's result goes with its use. */
function showThread(parent, thread, conversation, depth, prompt) {
  const results = new Map();
  const uses = new Set();
  for (const block of thread.blocks) {
    if (block.type === "tool_result") results.set(block.toolUseId, block);
    if (block.type === "tool_use") uses.add(block.toolUseId);
  }
  const isShown = (block) => {
    if (block.type === "tool_result") return !uses.has(block.toolUseId);
    // What a subagent was asked is in its parent's words already, and a short prompt in the card's head.
    if (block.type === "user_message") return depth === 0 && !(block.content === prompt && prompt.length <= 160);
    return makers[block.type] !== undefined;
  };
  const items = thread.blocks
    .filter(isShown)
    .map((block) => [`${block.type} ${block.id}`, { block, result: results.get(block.toolUseId), conversation, depth }]);
  reconcile(parent, items, (item) => makers[item.block.type]());
}

/** Sends a request's answer; the card goes once the server says so. */
function answering(card, send) {
  const failure = card.querySelector(".failure");
  return async (path, body) => {
    const controls = card.querySelectorAll("button, input");
    // A button that is gone cannot keep the focus; the task's card can.
    if (card.contains(document.activeElement)) card.closest(".card").focus({ preventScroll: true });
    for (const control of controls) control.disabled = true;
    say(failure, "");
    const wrong = await send(path, body);
    if (wrong !== null) {
      say(failure, wrong);
      for (const control of controls) control.disabled = false;
    }
  };
}

/** Text on which somebody decides: what does not show, or turns other text round, is spelled out. */
export function spelledOut(text) {
  const unseen = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;
  return text.replace(unseen, (c) => `<U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}>`);
}

function permissionCard(request, task, send) {
  const title = el("h3", {}, `Permission for ${spelledOut(request.permission)}`);
  const whose = request.sessionID === task.session ? [] : [el("p", { className: "quiet" }, "A subagent asks.")];
  const list = (texts) => texts.map((text) => el("code", { className: "pattern" }, spelledOut(text)));
  // The command in full, as it will run; the patterns are only what the server made of it.
  const { command, diff: change } = request.metadata ?? {};
  const whole = typeof command === "string" ? [el("pre", { className: "command" }, spelledOut(command))] : [];
  const isSame = request.patterns.length === 1 && request.patterns[0] === command;
  const patterns = isSame ? [] : [...(whole.length > 0 ? [el("p", { className: "quiet" }, "for")] : []), ...list(request.patterns)];
  const diff = typeof change === "string" ? [el("pre", { className: "body" }, spelledOut(change))] : [];
  const button = (words, className, body) =>
    el("button", { type: "button", className, onclick: () => reply(`/permissions/${encodeURIComponent(request.id)}`, body) }, words);
  const scope =
    request.always.length > 0
      ? [el("p", { className: "quiet" }, "“Always” allows from now on, in all tasks:"), ...list(request.always)]
      : [el("p", { className: "quiet" }, "“Always” allows nothing beyond this.")];
  const buttons = el(
    "div",
    { className: "buttons" },
    button("Approve once", "primary", { reply: "once" }),
    button("Always", "", { reply: "always" }),
    button("Deny", "danger", { reply: "reject" }),
  );
  const card = el(
    "section",
    { className: "request", "data-request": request.id, "aria-label": `Permission for ${request.permission}` },
    title,
    ...whose,
    ...whole,
    ...patterns,
    ...diff,
    buttons,
    ...scope,
    el("p", { className: "failure", role: "alert" }),
  );
  const reply = answering(card, send);
  return card;
}

function questionCard(request, task, send) {
  const fields = request.questions.map((question, index) => {
    const name = `${request.id}-${index}`;
    const type = question.multiple ? "checkbox" : "radio";
    const own = el("input", { type: "text", placeholder: "In your own words", "aria-label": "In your own words" });
    const options = question.options.map(({ label, description }) =>
      el(
        "label",
        { className: "option" },
        el("input", { type, name, value: label }),
        el("span", {}, el("strong", {}, label), el("span", { className: "quiet" }, description)),
      ),
    );
    const field = el("fieldset", {}, el("legend", {}, question.question), ...options, own);
    const chosen = () => [...field.querySelectorAll("input:checked")].map((input) => input.value);
    return { field, answer: () => [...chosen(), ...(own.value.trim() ? [own.value.trim()] : [])] };
  });
  const answer = el("button", { type: "submit", className: "primary" }, "Answer");
  const decline = el("button", { type: "button" }, "Let it decide");
  const card = el(
    "form",
    { className: "request", "data-request": request.id, "aria-label": "Question" },
    el("h3", {}, request.questions.length === 1 ? "A question" : "Questions"),
    ...fields.map(({ field }) => field),
    el("div", { className: "buttons" }, answer, decline),
    el("p", { className: "failure", role: "alert" }),
  );
  const reply = answering(card, send);
  card.onsubmit = (event) => {
    event.preventDefault();
    const answers = fields.map(({ answer }) => answer());
    if (answers.some((answer) => answer.length === 0)) {
      say(card.querySelector(".failure"), "Choose an answer, or write one.");
    } else {
      reply(`/questions/${encodeURIComponent(request.id)}`, { answers });
    }
  };
  decline.onclick = () => reply(`/questions/${encodeURIComponent(request.id)}`, { answers: null });
  return card;
}

const OUTCOMES = {
  settled: ["done", "done"],
  aborted: ["aborted", "aborted"],
  failed: ["failed", "failed"],
  timedOut: ["failed", "timed out"],
  interrupted: ["failed", "interrupted"],
  rejected: ["failed", "rejected"],
  refused: ["failed", "refused"],
  sessionGone: ["failed", "session gone"],
  unauthorized: ["failed", "unauthorized"],
  givenUp: ["failed", "given up"],
  notRun: ["failed", "not run"],
  noSession: ["failed", "no session"],
};

/** A task's state: for the eye, and in words. */
export function standing(task) {
  if (task.status === "ended") return OUTCOMES[task.outcome?.type] ?? ["failed", "ended"];
  if (task.status === "aborting") return ["busy", "aborting"];
  if (task.permissions.length + task.questions.length > 0) return ["asks", "needs you"];
  return ["busy", task.status];
}

/** A task's card. `send(path, body)` resolves to null, or to what went wrong. */
export function taskCard({ task: { id } }, send) {
  const chip = el("span", { className: "chip" });
  const time = el("span", { className: "quiet elapsed" });
  const abort = el("button", { type: "button", className: "danger abort" }, "Abort");
  const title = el("h2", { id: `title-${id}` });
  const note = el("p", { className: "note" });
  const requests = el("div", { className: "requests" });
  const thread = el("div", { className: "thread" });
  // Reachable by keyboard, since it scrolls.
  const scroll = el("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": `Conversation ${id}` }, thread);
  const waiting = el("p", { className: "quiet waiting" }, "Waiting for the model");
  scroll.append(waiting);
  const foot = el("footer", { className: "quiet" });
  const card = el(
    "article",
    { className: "card", id: `task-${id}`, "aria-labelledby": `title-${id}`, tabIndex: -1 },
    el("header", {}, el("div", { className: "row" }, chip, el("span", { className: "quiet" }, `#${id}`), time, abort), title),
    note,
    requests,
    scroll,
    foot,
  );
  let [isSending, following, startedAt, endedAt] = [false, true, 0, null];
  abort.onclick = async () => {
    abort.disabled = isSending = true;
    const wrong = await send(`/tasks/${id}/abort`, {});
    isSending = false;
    if (wrong !== null) say(note, wrong);
  };
  // Follows the text unless somebody scrolled up to read.
  scroll.onscroll = () => (following = scroll.scrollTop + scroll.clientHeight >= scroll.scrollHeight - 40);

  card.show = (entry) => {
    if (entry.isShown) return;
    entry.isShown = true;
    const { task, conversation } = entry;
    ({ startedAt, endedAt } = task);
    const [state, words] = standing(task);
    card.dataset.state = state;
    say(chip, words);
    say(title, task.prompt);
    title.title = task.prompt;
    abort.hidden = task.status === "ended";
    abort.disabled = isSending || task.status === "aborting";
    say(note, task.note ?? (task.outcome?.type === "settled" ? "" : (task.outcome?.message ?? "")));
    reconcile(
      requests,
      [...task.permissions, ...task.questions].map((request) => [request.id, request]),
      (request) => (request.questions ? questionCard : permissionCard)(request, task, send),
    );
    showThread(thread, conversation.main, conversation, 0, task.prompt);
    waiting.hidden = task.status === "ended" || thread.childElementCount > 0;
    const model = conversation.main.metadata.model;
    say(foot, [spent(conversation.totalUsage), model].filter(Boolean).join(" · "));
    card.follow();
  };
  card.follow = () => {
    if (following) scroll.scrollTop = scroll.scrollHeight;
  };
  card.tick = (now) => say(time, duration(Math.max(0, (endedAt ?? now) - startedAt)));
  return card;
}

/** Shows all tasks. */
export function showTasks(parent, tasks, send) {
  reconcile(parent, [...tasks].map(([id, entry]) => [id, entry]), (entry) => taskCard(entry, send));
}
