// Follows the tasks: a snapshot, then changes one by one; after any gap the same again.

import { addUp, Conversation } from "/fold.js";
import { showTasks, spent, standing } from "/view.js";

const part = (id) => document.getElementById(id);

/** Every task with its conversation, by id, and whether it is shown as it is. */
export const tasks = new Map();
let about = { server: "", directory: "" };
/** The number of the last change, and how far this clock is behind the server's. */
let [seq, behind] = [0, 0];

function connect() {
  const source = new EventSource("/events");
  source.onmessage = ({ data }) => {
    const change = JSON.parse(data);
    if (change.type !== "snapshot" && change.seq !== seq + 1) {
      // Something is missing: a new connection begins with a snapshot.
      source.close();
      connect();
      return;
    }
    seq = change.seq;
    receive(change);
    showSoon();
  };
  source.onerror = () => {
    connection("reconnecting");
    // It tries again by itself unless the answer was no event stream at all.
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 1000);
  };
}

function receive(change) {
  switch (change.type) {
    case "snapshot":
      connection("live");
      behind = change.now - Date.now();
      about = change.about;
      tasks.clear();
      for (const { conversation, ...task } of change.tasks) {
        tasks.set(task.id, { task, conversation: Conversation.from(conversation) });
      }
      break;
    case "task": {
      const known = tasks.get(change.task.id);
      announce(known?.task, change.task);
      tasks.set(change.task.id, { task: change.task, conversation: known?.conversation ?? new Conversation() });
      break;
    }
    case "conversation": {
      const entry = tasks.get(change.task);
      entry.conversation.apply(change.event);
      entry.isShown = false;
      break;
    }
    case "reset":
      tasks.set(change.task, { ...tasks.get(change.task), conversation: Conversation.from(change.conversation), isShown: false });
  }
}

/** Tells those who cannot see the page what they would want to look up for. */
function announce(before, task) {
  const [was, is] = [before && standing(before)[1], standing(task)[1]];
  if (was !== is && is !== "starting") part("news").textContent = `Task ${task.id}: ${is}`;
}

function connection(state) {
  part("connection").dataset.state = state;
  part("connection").textContent = state;
}

let isDue = false;
/** Shows changes once per frame, however many there are. Pages in the background get no frames. */
function showSoon() {
  if (isDue) return;
  isDue = true;
  const show = () => {
    isDue = false;
    showAll();
  };
  if (document.hidden) setTimeout(show, 200);
  else requestAnimationFrame(show);
}

function showAll() {
  showTasks(part("tasks"), tasks, send);
  tick();
  part("empty").hidden = tasks.size > 0;
  part("about").textContent = [about.server, about.directory.split("/").at(-1)].filter(Boolean).join(" · ");
  part("about").title = about.directory;
  const counts = new Map();
  for (const { task } of tasks.values()) {
    const [state] = standing(task);
    counts.set(state, (counts.get(state) ?? 0) + 1);
  }
  const words = { asks: "waiting for you", busy: "running", done: "done", failed: "failed", aborted: "aborted" };
  const totals = Object.entries(words).filter(([state]) => counts.has(state)).map(([state, words]) => `${counts.get(state)} ${words}`);
  const usage = addUp([...tasks.values()].map(({ conversation }) => conversation.totalUsage));
  part("totals").textContent = tasks.size > 0 ? [...totals, spent(usage)].join(" · ") : "";
  document.title = counts.has("asks") ? `(${counts.get("asks")}) Tasks` : "Tasks";
}

function tick() {
  for (const card of part("tasks").children) card.tick(Date.now() + behind);
}

/** Resolves to null, or to what went wrong. */
async function send(path, body) {
  try {
    const response = await fetch(path, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    });
    return response.ok ? null : (await response.text()) || `the server says ${response.status}`;
  } catch {
    return "the server cannot be reached";
  }
}

part("new").onsubmit = async (event) => {
  event.preventDefault();
  const field = part("prompt");
  const prompt = field.value.trim();
  if (prompt === "") return field.focus();
  const wrong = await send("/tasks", { prompt });
  part("new-failure").textContent = wrong ?? "";
  if (wrong === null) field.value = "";
};

part("prompt").onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    part("new").requestSubmit();
  }
};

setInterval(tick, 1000);
// Lines break elsewhere now.
addEventListener("resize", () => [...part("tasks").children].forEach((card) => card.follow()));
connect();
