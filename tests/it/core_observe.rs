//! The merge, case by case: what may come too early, too late, twice or never.

use opencode_conductor::{
    AgentId, BlockBody, BlockStatus, ConversationId, ConvertOptions, MessageId, Observed, RunStatus,
    SessionConversationState, SessionId, SessionTree, Snapshot, Thinking, Thread, message_signature,
    wire::{Message, ServerEvent, SessionInfo},
};
use serde_json::{Value, json};

const ROOT: &str = "ses_root";

struct Client {
    tree: SessionTree,
    state: SessionConversationState,
}

impl Client {
    fn new() -> Self {
        Self::with(ConvertOptions::default())
    }

    fn with(options: ConvertOptions) -> Self {
        Self { tree: SessionTree::new(ROOT.into(), options), state: SessionConversationState::new() }
    }

    fn event(&mut self, kind: &str, mut properties: Value) -> Observed {
        let event = json!({"type": kind, "properties": properties.take()});
        let observed = self.tree.apply_event(ServerEvent::from_json(&event.to_string()).unwrap());
        self.fold(observed)
    }

    fn message(&mut self, info: &Value) -> Observed {
        self.event("message.updated", json!({"info": info}))
    }

    fn part(&mut self, part: &Value) -> Observed {
        self.event("message.part.updated", json!({"part": part}))
    }

    fn delta(&mut self, part: &Value, delta: &str) -> Observed {
        self.event(
            "message.part.delta",
            json!({"sessionID": part["sessionID"], "messageID": part["messageID"],
            "partID": part["id"], "field": "text", "delta": delta}),
        )
    }

    fn idle(&mut self, session: &str) -> Observed {
        self.event("session.idle", json!({"sessionID": session}))
    }

    fn child(&mut self, id: &str, parent: &str) -> Observed {
        self.event("session.created", json!({"info": child(id, parent)}))
    }

    fn list(&mut self, session: &str, messages: &[(&Value, &[&Value])], snapshot: Snapshot) -> Observed {
        let observed = self.tree.apply_messages(&session.into(), &list(messages), snapshot);
        self.fold(observed)
    }

    fn fold(&mut self, observed: Observed) -> Observed {
        self.state.extend(&observed.events);
        observed
    }

    /// The texts of a thread, unfinished ones with dots.
    fn texts(&self, conversation: &str) -> Vec<String> {
        let thread = self.state.thread(&ConversationId::new(conversation));
        let blocks = thread.into_iter().flat_map(Thread::iter);
        let text = |block: &opencode_conductor::ConversationBlock| {
            let dots = if block.status == BlockStatus::Pending { "…" } else { "" };
            Some(format!("{}{dots}", block.body.content()?))
        };
        blocks.filter_map(|block| text(block)).collect()
    }

    fn mirror(&self, session: &str) -> Vec<Message> {
        self.tree.messages(&session.into()).map(|message| (**message).clone()).collect()
    }
}

fn list(messages: &[(&Value, &[&Value])]) -> Vec<Message> {
    let messages: Vec<Value> =
        messages.iter().map(|(info, parts)| json!({"info": info, "parts": parts})).collect();
    Message::list_from_json(&json!(messages).to_string()).unwrap().items
}

fn child(id: &str, parent: &str) -> Value {
    json!({"id": id, "parentID": parent, "title": "look (@general subagent)", "time": {"created": 5, "updated": 5}})
}

fn user(session: &str, id: &str, created: i64) -> Value {
    json!({"id": id, "sessionID": session, "role": "user", "time": {"created": created}})
}

fn step(session: &str, id: &str, created: i64) -> Value {
    json!({"id": id, "sessionID": session, "role": "assistant", "time": {"created": created}, "modelID": "m", "providerID": "p"})
}

fn completed(mut step: Value) -> Value {
    step["time"]["completed"] = json!(99);
    step
}

fn part(message: &Value, id: &str, mut rest: Value) -> Value {
    let mut part = json!({"id": id, "sessionID": message["sessionID"], "messageID": message["id"]});
    part.as_object_mut().unwrap().append(rest.as_object_mut().unwrap());
    part
}

fn text(message: &Value, id: &str, text: &str) -> Value {
    part(message, id, json!({"type": "text", "text": text, "time": {"start": 1}}))
}

fn ended(message: &Value, id: &str, text: &str) -> Value {
    part(message, id, json!({"type": "text", "text": text, "time": {"start": 1, "end": 2}}))
}

fn task(message: &Value, id: &str, status: &str, child: Option<&str>) -> Value {
    let mut state = json!({"status": status, "input": {"description": "look", "subagent_type": "general"}, "time": {"start": 1}});
    if let Some(child) = child {
        state["metadata"] = json!({"sessionId": child});
    }
    part(message, id, json!({"type": "tool", "callID": "call_1", "tool": "task", "state": state}))
}

#[test]
fn text_streams_into_a_block_and_ends() {
    let mut client = Client::new();
    let step = step(ROOT, "msg_1", 1);
    client.message(&step);
    assert!(client.part(&text(&step, "prt_1", "")).events.is_empty(), "blank text shows nothing");
    client.delta(&text(&step, "prt_1", ""), "\n");
    client.delta(&text(&step, "prt_1", ""), "a");
    client.delta(&text(&step, "prt_1", ""), " \n");
    assert_eq!(client.texts("main"), ["\na \n…"]);
    client.part(&ended(&step, "prt_1", "\na"));
    assert_eq!(client.texts("main"), ["\na"]);
    assert!(client.delta(&text(&step, "prt_1", ""), "late").is_empty());
}

#[test]
fn a_list_without_the_text_does_not_shorten_what_was_streamed() {
    let mut client = Client::new();
    let step = step(ROOT, "msg_1", 1);
    client.message(&step);
    client.part(&text(&step, "prt_1", ""));
    client.delta(&text(&step, "prt_1", ""), "Hello");
    let observed = client.list(ROOT, &[(&step, &[&text(&step, "prt_1", "")])], Snapshot::Live);
    assert!(observed.is_empty());
    client.delta(&text(&step, "prt_1", ""), " world");
    assert_eq!(client.texts("main"), ["Hello world…"]);
    // Nor does one that is further undo anything when older events follow.
    client.list(
        ROOT,
        &[(&completed(step.clone()), &[&ended(&step, "prt_1", "Hello world!")])],
        Snapshot::Live,
    );
    for observed in [
        client.part(&text(&step, "prt_1", "")),
        client.message(&step),
        client.delta(&text(&step, "prt_1", ""), "x"),
    ] {
        assert!(observed.is_empty());
    }
    assert_eq!(client.texts("main"), ["Hello world!"]);
}

#[test]
fn what_comes_before_its_message_or_part_is_joined_later() {
    let mut client = Client::new();
    let step = step(ROOT, "msg_1", 1);
    let (one, two) = (text(&step, "prt_1", ""), text(&step, "prt_2", ""));
    for observed in
        [client.delta(&one, "Hel"), client.delta(&one, "lo"), client.part(&one), client.delta(&one, "!")]
    {
        assert_eq!((observed.events.len(), observed.changed.len()), (0, 0));
    }
    client.message(&step);
    assert_eq!(client.texts("main"), ["Hello!…"]);
    // On servers that stream nothing but deltas, the part comes with a list.
    client.delta(&two, "by list");
    client.list(ROOT, &[(&step, &[&one, &two])], Snapshot::Live);
    assert_eq!(client.texts("main"), ["Hello!…", "by list…"]);
}

#[test]
fn what_never_finds_its_message_is_not_kept_without_bound() {
    let mut client = Client::new();
    for at in 0..1_000 {
        let step = step(ROOT, &format!("msg_{at:04}"), at);
        client.part(&text(&step, &format!("prt_{at:04}"), "early"));
    }
    for at in 0..1_000 {
        client.message(&step(ROOT, &format!("msg_{at:04}"), at));
    }
    assert_eq!(client.texts("main").len(), 64);
    // Text beyond the bound is given up whole: a text with a hole would be worse.
    let step = step(ROOT, "msg_9999", 9_999);
    client.message(&step);
    for _ in 0..3 {
        client.delta(&text(&step, "prt_9999", ""), &"x".repeat(200_000));
    }
    client.part(&text(&step, "prt_9999", ""));
    assert_eq!(client.texts("main").len(), 64);
    client.part(&ended(&step, "prt_9999", "all of it"));
    assert_eq!(client.texts("main").len(), 65);
}

#[test]
fn a_failed_attempt_leaves_nothing_once_the_step_is_complete() {
    let mut client = Client::new();
    let step = step(ROOT, "msg_1", 1);
    client.message(&step);
    client.part(&text(&step, "prt_1", ""));
    client.delta(&text(&step, "prt_1", ""), "I will");
    client.part(&ended(&step, "prt_2", "I did."));
    assert_eq!(client.texts("main"), ["I will…", "I did."]);
    client.message(&completed(step.clone()));
    assert_eq!(client.texts("main"), ["I did."]);
    assert_eq!(
        client.mirror(ROOT),
        list(&[(&completed(step.clone()), &[&text(&step, "prt_1", ""), &ended(&step, "prt_2", "I did.")])])
    );
    // What an old server did store of it stays.
    let mut client = Client::new();
    client.message(&step);
    client.part(&text(&step, "prt_1", "I wi"));
    client.part(&text(&step, "prt_1", "I will"));
    client.message(&completed(step));
    assert_eq!(client.texts("main"), ["I will"]);
}

#[test]
fn the_first_of_two_idles_does_not_end_the_turn() {
    let mut client = Client::new();
    let step = step(ROOT, "msg_1", 1);
    let running = part(
        &step,
        "prt_1",
        json!({"type": "tool", "callID": "c", "tool": "bash", "state": {"status": "running", "input": {}}}),
    );
    client.message(&step);
    client.part(&running);
    assert!(client.idle(ROOT).is_empty());
    assert_eq!(client.tree.running_tools().count(), 1);
    let block = |client: &Client| client.state.blocks().iter().next().unwrap().status;
    assert_eq!(block(&client), BlockStatus::Pending);
    // The step completes, which makes the idle count; the second one adds nothing.
    client.message(&completed(step));
    assert_eq!((block(&client), client.tree.running_tools().count()), (BlockStatus::Complete, 0));
    assert!(client.idle(ROOT).is_empty());
    assert!(client.part(&running).is_empty());
}

#[test]
fn an_idle_of_the_last_turn_does_not_end_the_next() {
    let mut client = Client::new();
    client.message(&user(ROOT, "msg_1", 1));
    client.idle(ROOT);
    let step = step(ROOT, "msg_2", 2);
    client.message(&step);
    client.part(&text(&step, "prt_1", "going on"));
    client.event("session.status", json!({"sessionID": ROOT, "status": {"type": "busy"}}));
    client.message(&completed(step));
    let next = self::step(ROOT, "msg_3", 3);
    client.message(&next);
    client.part(&text(&next, "prt_2", "still"));
    assert_eq!(client.texts("main"), ["going on", "still…"]);
}

#[test]
fn an_interrupted_turn_is_settled_by_force_and_stays_settled() {
    let mut client = Client::new();
    let step = step(ROOT, "msg_1", 1);
    client.message(&step);
    client.part(&text(&step, "prt_1", "half"));
    let observed = client.tree.settle(&ROOT.into());
    client.fold(observed);
    assert_eq!(client.texts("main"), ["half"]);
    // Whatever else is said of it, it does not become unfinished again.
    client.part(&text(&step, "prt_1", "half of it"));
    assert_eq!(client.texts("main"), ["half of it"]);
    assert!(client.tree.settle(&ROOT.into()).is_empty());
}

#[test]
fn the_truth_replaces_and_removes_within_its_range() {
    let mut client = Client::new();
    let (one, two, three) =
        (user(ROOT, "msg_1", 1), step(ROOT, "msg_2", 2), completed(step(ROOT, "msg_3", 3)));
    client.message(&one);
    client.part(&part(&one, "prt_1", json!({"type": "text", "text": "old prompt"})));
    client.message(&two);
    client.part(&text(&two, "prt_2", ""));
    client.delta(&text(&two, "prt_2", ""), "lost in a crash");
    client.message(&three);
    client.part(&ended(&three, "prt_3", "gone"));
    client.part(&ended(&three, "prt_4", "wrong"));
    let page: &[(&Value, &[&Value])] =
        &[(&two, &[&text(&two, "prt_2", "")]), (&three, &[&ended(&three, "prt_4", "right")])];
    client.list(ROOT, page, Snapshot::Settled);
    assert_eq!(client.texts("main"), ["old prompt", "right"]);
    client.list(ROOT, &page[..1], Snapshot::Settled);
    assert_eq!(client.texts("main"), ["old prompt"]);
    client.list(ROOT, &page[..1], Snapshot::Complete);
    assert_eq!(client.texts("main"), [""; 0]);
    assert_eq!(client.mirror(ROOT), list(&page[..1]));
}

#[test]
fn a_prompt_that_was_changed_is_known_for_one_by_its_list() {
    let mut client = Client::new();
    let prompt = user(ROOT, "msg_1", 1);
    client.part(&text(&prompt, "prt_1", "a long draft"));
    client.list(ROOT, &[(&prompt, &[&text(&prompt, "prt_1", "short")])], Snapshot::Live);
    assert_eq!(client.texts("main"), ["short"]);
}

#[test]
fn the_truth_removes_parts_whose_message_was_not_seen() {
    for snapshot in [Snapshot::Settled, Snapshot::Complete] {
        let mut client = Client::new();
        let prompt = user(ROOT, "msg_1", 1);
        client.part(&ended(&prompt, "prt_1", "since removed"));
        let kept = ended(&prompt, "prt_2", "kept");
        client.list(ROOT, &[(&prompt, &[&kept])], snapshot);
        assert_eq!(client.texts("main"), ["kept"], "{snapshot:?}");
    }
}

#[test]
fn what_was_removed_comes_back_by_an_event_but_not_by_an_old_list() {
    let mut client = Client::new();
    let prompt = user(ROOT, "msg_1", 1);
    let words = part(&prompt, "prt_1", json!({"type": "text", "text": "hi"}));
    let more = part(&prompt, "prt_2", json!({"type": "text", "text": "you"}));
    client.list(ROOT, &[(&prompt, &[&words, &more])], Snapshot::Live);
    assert_eq!(client.texts("main"), ["hi\nyou"]);
    client.event("message.part.removed", json!({"sessionID": ROOT, "messageID": "msg_1", "partID": "prt_2"}));
    assert_eq!(client.texts("main"), ["hi"]);
    assert!(client.list(ROOT, &[(&prompt, &[&words, &more])], Snapshot::Live).is_empty());
    client.event("message.removed", json!({"sessionID": ROOT, "messageID": "msg_1"}));
    assert!(client.list(ROOT, &[(&prompt, &[&words])], Snapshot::Live).is_empty());
    assert_eq!((client.texts("main").len(), client.mirror(ROOT).len()), (0, 0));
    // Sent again under the same id.
    client.message(&prompt);
    client.part(&words);
    assert_eq!(client.texts("main"), ["hi"]);
}

#[test]
fn a_prompt_submitted_again_moves() {
    let mut client = Client::new();
    let prompt = user(ROOT, "msg_1", 1);
    let words = part(&prompt, "prt_1", json!({"type": "text", "text": "do it"}));
    let answer = completed(step(ROOT, "msg_2", 2));
    client.list(
        ROOT,
        &[(&prompt, &[&words]), (&answer, &[&ended(&answer, "prt_2", "failed")])],
        Snapshot::Live,
    );
    client.message(&user(ROOT, "msg_1", 3));
    assert_eq!(client.texts("main"), ["failed", "do it"]);
    assert_eq!(
        client.tree.messages(&ROOT.into()).map(|message| message.info.id().as_str()).collect::<Vec<_>>(),
        ["msg_2", "msg_1"]
    );
    assert_eq!(client.tree.turn(&ROOT.into(), &"msg_2".into()).count(), 1);
    assert_eq!(client.tree.turn(&ROOT.into(), &"msg_1".into()).count(), 0);
    assert_eq!(client.tree.turn(&ROOT.into(), &"msg_0".into()).count(), 0);
}

#[test]
fn a_child_before_its_owner_moves_when_the_owner_is_known() {
    let mut client = Client::new();
    let parent = step(ROOT, "msg_1", 1);
    client.message(&parent);
    client.part(&task(&parent, "prt_task", "pending", None));
    let observed = client.child("ses_a", ROOT);
    assert_eq!(observed.new_sessions, [SessionId::new("ses_a")]);
    let inside = step("ses_a", "msg_a", 2);
    client.message(&inside);
    client.part(&ended(&inside, "prt_a", "inside"));
    // A nested one, below.
    client.part(&task(&inside, "prt_nested", "running", Some("ses_b")));
    let deep = step("ses_b", "msg_b", 3);
    client.message(&deep);
    client.part(&ended(&deep, "prt_b", "deep"));
    assert_eq!(
        (client.texts("ses_a"), client.texts("prt_nested")),
        (vec!["inside".to_owned()], vec!["deep".to_owned()])
    );
    let names: Vec<_> =
        client.state.subagents().map(|subagent| subagent.tool_use_id.as_str().to_owned()).collect();
    assert_eq!(names, ["prt_nested", "prt_task", "ses_a"]);

    client.part(&task(&parent, "prt_task", "running", Some("ses_a")));
    let names: Vec<_> = client
        .state
        .subagents()
        .map(|subagent| (subagent.tool_use_id.as_str().to_owned(), subagent.parent_id.as_str().to_owned()))
        .collect();
    assert_eq!(names, [("prt_nested".into(), "prt_task".into()), ("prt_task".into(), "main".into())]);
    assert_eq!(client.texts("prt_task"), ["inside"]);
    assert_eq!(client.texts("prt_nested"), ["deep"]);
    assert_eq!(client.state.blocks().len(), 1);
    assert_eq!(client.tree.conversation(&"ses_a".into()), Some(&ConversationId::new("prt_task")));
    assert_eq!(client.tree.parent(&"ses_b".into()), Some(&"ses_a".into()));
}

#[test]
fn a_subagent_is_announced_once_and_not_before_its_prompt_is_known() {
    let mut client = Client::new();
    let parent = step(ROOT, "msg_1", 1);
    client.message(&parent);
    let asked = |status: &str, child: Option<&str>, prompt: &str| {
        let mut part = task(&parent, "prt_task", status, child);
        part["state"]["input"]["prompt"] = json!(prompt);
        part
    };
    let events: Vec<_> = [
        asked("pending", None, ""),
        asked("running", None, "Look."),
        asked("running", Some("ses_a"), "Look."),
        asked("completed", Some("ses_a"), "Look."),
    ]
    .iter()
    .flat_map(|part| client.part(part).events)
    .map(|event| serde_json::to_value(event).unwrap())
    .map(|event| json!([event["type"], event["prompt"], event["block"]["status"], event["agentId"]]))
    .collect();
    let expected = [
        json!(["block:upsert", null, "pending", null]),
        json!(["subagent:spawned", "Look.", null, null]),
        json!(["block:upsert", null, "running", null]),
        json!(["subagent:completed", null, null, "ses_a"]),
    ];
    assert_eq!(events, expected);
    let subagent = client.state.subagent(&"prt_task".into()).unwrap();
    assert_eq!((subagent.status, subagent.prompt.as_deref()), (RunStatus::Success, Some("Look.")));
}

#[test]
fn a_call_that_turns_out_to_be_of_another_tool_is_no_subagent() {
    for status in ["pending", "running"] {
        let mut client = Client::new();
        let parent = step(ROOT, "msg_1", 1);
        client.message(&parent);
        client.part(&task(&parent, "prt_task", status, None));
        assert_eq!(client.state.subagents().count(), 1);
        // So servers say that a model called a tool that it does not have.
        let mut invalid = task(&parent, "prt_task", "completed", None);
        invalid["tool"] = json!("invalid");
        client.part(&invalid);
        let mut loaded = Client::new();
        loaded.list(ROOT, &[(&parent, &[&invalid])], Snapshot::Live);
        assert_eq!(client.state, loaded.state, "{status}");
        assert_eq!((client.state.subagents().count(), client.state.blocks().len()), (0, 2));
    }
}

#[test]
fn a_failed_task_that_lost_its_metadata_keeps_its_child() {
    let mut client = Client::new();
    let parent = step(ROOT, "msg_1", 1);
    client.message(&parent);
    client.part(&task(&parent, "prt_task", "running", Some("ses_a")));
    let inside = step("ses_a", "msg_a", 2);
    client.message(&inside);
    client.part(&ended(&inside, "prt_a", "inside"));
    client.part(&task(&parent, "prt_task", "error", None));
    client.part(&ended(&inside, "prt_b", "more"));
    let subagent = client.state.subagents().next().unwrap();
    assert_eq!((client.state.subagents().count(), subagent.status), (1, RunStatus::Error));
    assert_eq!(subagent.agent_id.as_ref().map(AgentId::as_str), Some("ses_a"));
    assert_eq!(client.texts("prt_task"), ["inside", "more"]);
}

#[test]
fn a_cancelled_task_that_names_no_child_is_given_the_one_with_its_prompt() {
    let parent = completed(step(ROOT, "msg_1", 1));
    let asking = |part: &str, status: &str, child: Option<&str>, prompt: &str| {
        let mut part = task(&parent, part, status, child);
        part["state"]["input"]["prompt"] = json!(prompt);
        part
    };
    let calls = [asking("prt_1", "error", None, "one"), asking("prt_2", "error", None, "two")];
    let children = [("ses_0", "three", "c"), ("ses_b", "two", "b"), ("ses_a", "one", "a")];
    let show = |client: &mut Client| {
        for (session, asked, said) in children {
            client.child(session, ROOT);
            let prompt = user(session, &format!("msg_{said}1"), 3);
            let answer = completed(step(session, &format!("msg_{said}2"), 4));
            let asked = part(&prompt, &format!("prt_{said}1"), json!({"type": "text", "text": asked}));
            let said = ended(&answer, &format!("prt_{said}2"), said);
            client.list(session, &[(&prompt, &[&asked]), (&answer, &[&said])], Snapshot::Complete);
        }
    };
    let list = |client: &mut Client| {
        client.list(ROOT, &[(&parent, &[&calls[0], &calls[1]])], Snapshot::Complete);
    };
    let [mut children_first, mut calls_first, mut watched] = [Client::new(), Client::new(), Client::new()];
    show(&mut children_first);
    list(&mut children_first);
    list(&mut calls_first);
    show(&mut calls_first);
    // To one who watches, each call says which session it starts.
    watched.message(&step(ROOT, "msg_1", 1));
    watched.part(&asking("prt_1", "running", Some("ses_a"), "one"));
    watched.part(&asking("prt_2", "running", Some("ses_b"), "two"));
    show(&mut watched);
    list(&mut watched);
    for client in [&children_first, &calls_first] {
        assert_eq!(client.state, watched.state);
        assert_eq!(
            ["prt_1", "prt_2", "ses_0"].map(|id| client.texts(id)),
            [["one", "a"], ["two", "b"], ["three", "c"]]
        );
    }
}

#[test]
fn of_several_calls_that_name_a_child_the_first_in_order_owns_it() {
    let mut client = Client::new();
    let (one, two) = (step(ROOT, "msg_1", 1), step(ROOT, "msg_2", 2));
    client.message(&two);
    client.part(&task(&two, "prt_2", "completed", Some("ses_a")));
    let inside = step("ses_a", "msg_a", 3);
    client.message(&inside);
    client.part(&ended(&inside, "prt_a", "inside"));
    assert_eq!(client.texts("prt_2"), ["inside"]);
    client.message(&one);
    client.part(&task(&one, "prt_1", "completed", Some("ses_a")));
    assert_eq!((client.texts("prt_1"), client.texts("prt_2")), (vec!["inside".to_owned()], vec![]));
    assert_eq!(client.state.blocks().len(), 2);
    // And when the first is gone the second does.
    client.event("message.removed", json!({"sessionID": ROOT, "messageID": "msg_1"}));
    assert_eq!((client.texts("prt_2"), client.state.subagents().count()), (vec!["inside".to_owned()], 1));
    client.event("message.part.removed", json!({"sessionID": ROOT, "messageID": "msg_2", "partID": "prt_2"}));
    assert_eq!(client.texts("ses_a"), ["inside"]);
}

#[test]
fn a_subagent_in_the_background_ends_with_its_session_and_not_with_its_call() {
    let mut client = Client::new();
    let parent = step(ROOT, "msg_1", 1);
    client.message(&parent);
    let mut call = task(&parent, "prt_task", "completed", Some("ses_a"));
    call["state"]["metadata"]["background"] = json!(true);
    client.part(&call);
    let inside = step("ses_a", "msg_a", 2);
    client.message(&inside);
    client.part(&ended(&inside, "prt_a", "found it"));
    client.message(&completed(parent));
    client.idle(ROOT);
    let status = |client: &Client| client.state.subagents().next().unwrap().status;
    assert_eq!(status(&client), RunStatus::Running);
    client.message(&completed(inside));
    assert_eq!(status(&client), RunStatus::Running);
    client.idle("ses_a");
    assert_eq!(status(&client), RunStatus::Success);
    let block = client.state.blocks().iter().next().unwrap();
    assert!(
        matches!(&block.body, BlockBody::Subagent(subagent) if *subagent.output.as_ref().unwrap() == "found it")
    );
}

#[test]
fn a_subagent_that_left_nothing_before_its_call_was_known_has_ended() {
    // Found by delivering the events of sessions in another order: the child seemed to run for ever.
    let mut client = Client::new();
    client.child("ses_a", ROOT);
    client.message(&user("ses_a", "msg_a", 1));
    client.idle("ses_a");
    client.event("message.removed", json!({"sessionID": "ses_a", "messageID": "msg_a"}));
    let parent = step(ROOT, "msg_1", 2);
    client.message(&parent);
    let mut call = task(&parent, "prt_task", "completed", Some("ses_a"));
    call["state"]["metadata"]["background"] = json!(true);
    client.part(&call);
    assert_eq!(client.state.subagents().next().unwrap().status, RunStatus::Success);
}

#[test]
fn a_removed_prompt_that_is_announced_again_does_not_wake_its_session() {
    // Found by delivering stretches of a log twice: the child seemed to run for ever.
    let mut client = Client::new();
    client.child("ses_a", ROOT);
    let (prompt, step) = (user("ses_a", "msg_1", 1), completed(step("ses_a", "msg_2", 2)));
    client.message(&prompt);
    client.message(&step);
    client.part(&ended(&step, "prt_1", "done"));
    client.idle("ses_a");
    let removed = json!({"sessionID": "ses_a", "messageID": "msg_1"});
    client.event("message.removed", removed.clone());
    let status = |client: &Client| client.state.subagents().next().unwrap().status;
    assert_eq!(status(&client), RunStatus::Success);
    client.message(&prompt);
    client.event("message.removed", removed);
    assert_eq!(status(&client), RunStatus::Success);
}

#[test]
fn a_deleted_child_leaves_only_its_call() {
    let mut client = Client::new();
    let parent = step(ROOT, "msg_1", 1);
    client.message(&parent);
    client.part(&task(&parent, "prt_task", "completed", Some("ses_a")));
    let inside = step("ses_a", "msg_a", 2);
    client.message(&inside);
    client.part(&ended(&inside, "prt_a", "inside"));
    client.event("session.deleted", json!({"info": child("ses_a", ROOT)}));
    assert!(!client.tree.contains(&"ses_a".into()));
    assert_eq!((client.state.blocks().len(), client.texts("prt_task").len()), (1, 0));
    // Its late events, and the call naming it again, do not bring it back.
    client.message(&completed(inside));
    let mut call = task(&parent, "prt_task", "completed", Some("ses_a"));
    call["state"]["time"]["compacted"] = json!(9);
    client.part(&call);
    assert!(!client.tree.contains(&"ses_a".into()));
    // The root is the caller's business.
    client.event("session.deleted", json!({"info": {"id": ROOT}}));
    assert!(client.tree.contains(&ROOT.into()));
}

#[test]
fn a_session_that_names_itself_or_its_parent_as_its_child_stays_where_it_is() {
    let mut client = Client::new();
    let parent = step(ROOT, "msg_1", 1);
    client.message(&parent);
    client.part(&task(&parent, "prt_1", "running", Some(ROOT)));
    client.part(&task(&parent, "prt_2", "running", Some("ses_a")));
    let inside = step("ses_a", "msg_a", 2);
    client.message(&inside);
    client.part(&task(&inside, "prt_3", "running", Some("ses_a")));
    client.part(&task(&inside, "prt_4", "running", Some(ROOT)));
    assert_eq!(client.tree.parent(&"ses_a".into()), Some(&ROOT.into()));
    assert_eq!(client.tree.parent(&ROOT.into()), None);
    assert_eq!(client.tree.children().count(), 1);
}

#[test]
fn only_sessions_below_the_root_are_let_in() {
    let mut client = Client::new();
    let info = |id: &str, parent: Option<&str>| {
        let mut info = json!({"id": id, "time": {"created": 1, "updated": 1}});
        if let Some(parent) = parent {
            info["parentID"] = json!(parent);
        }
        serde_json::from_value::<SessionInfo>(info).unwrap()
    };
    assert!(client.tree.apply_session(&info("ses_x", None)).is_empty());
    assert!(client.tree.apply_session(&info("ses_y", Some("ses_x"))).is_empty());
    assert!(client.tree.apply_session(&info(ROOT, None)).is_empty());
    assert_eq!(client.tree.apply_session(&info("ses_a", Some(ROOT))).new_sessions.len(), 1);
    assert_eq!(client.tree.apply_session(&info("ses_a", Some(ROOT))).new_sessions.len(), 0);
    assert_eq!(client.tree.apply_session(&info("ses_b", Some("ses_a"))).new_sessions.len(), 1);
    assert!(client.message(&user("ses_x", "msg_x", 1)).is_empty());
    assert!(client.tree.apply_messages(&"ses_x".into(), &[], Snapshot::Complete).is_empty());
    assert_eq!(client.tree.sessions().count(), 3);
}

#[test]
fn only_what_gets_the_turn_further_is_progress() {
    let mut client = Client::new();
    let prompt = user(ROOT, "msg_1", 1);
    let words = part(&prompt, "prt_1", json!({"type": "text", "text": "do it"}));
    let step = step(ROOT, "msg_2", 2);
    let tool = |status: &str, rest: Value| {
        let mut state = json!({"status": status, "input": {}, "time": {"start": 1}});
        state.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        part(&step, "prt_3", json!({"type": "tool", "callID": "c", "tool": "bash", "state": state}))
    };
    let no = |observed: Observed| assert!(!observed.progress && !observed.output, "{observed:?}");
    let yes = |observed: Observed| assert!(observed.progress && observed.output, "{observed:?}");
    let begins = |observed: Observed| assert!(observed.progress && !observed.output, "{observed:?}");
    no(client.message(&prompt));
    no(client.part(&words));
    no(client.event("session.status", json!({"sessionID": ROOT, "status": {"type": "busy"}})));
    yes(client.message(&step));
    no(client.message(&step));
    begins(client.part(&part(&step, "prt_0", json!({"type": "step-start"}))));
    begins(client.part(&text(&step, "prt_2", "")));
    no(client.part(&text(&step, "prt_2", "")));
    yes(client.delta(&text(&step, "prt_2", ""), "a"));
    no(client.delta(&text(&step, "prt_2", ""), ""));
    no(client.list(ROOT, &[(&step, &[&text(&step, "prt_2", "")])], Snapshot::Live));
    yes(client.part(&ended(&step, "prt_2", "a")));
    yes(client.part(&tool("pending", json!({}))));
    yes(client.part(&tool("running", json!({}))));
    yes(client.part(&tool("running", json!({"metadata": {"output": "so far"}}))));
    no(client.part(&tool("running", json!({}))));
    yes(client.part(&tool("completed", json!({"output": "x", "time": {"start": 1, "end": 2}}))));
    no(client.part(&tool("running", json!({"metadata": {"output": "so far"}}))));
    let mut finished = step.clone();
    finished["finish"] = json!("stop");
    yes(client.message(&finished));
    yes(client.message(&completed(finished.clone())));
    no(client.message(&finished));
    no(client.idle(ROOT));
    // The tail.
    let mut summarised = prompt;
    summarised["summary"] = json!({"diffs": []});
    no(client.message(&summarised));
    no(client.event("session.updated", json!({"info": {"id": ROOT, "title": "late"}})));
    no(client
        .part(&tool("completed", json!({"output": "x", "time": {"start": 1, "end": 2, "compacted": 3}}))));
    assert_eq!(
        client.tree.message(&ROOT.into(), &"msg_1".into()).unwrap().info.id(),
        &MessageId::new("msg_1")
    );
}

#[test]
fn a_change_names_its_message() {
    let mut client = Client::new();
    let step = step(ROOT, "msg_1", 1);
    let named = [(SessionId::new(ROOT), MessageId::new("msg_1"))];
    assert_eq!(client.message(&step).changed, named);
    assert_eq!(client.part(&text(&step, "prt_1", "")).changed, named);
    assert_eq!(client.delta(&text(&step, "prt_1", ""), "a").changed, named);
    assert_eq!(client.part(&text(&step, "prt_1", "")).changed, []);
    assert_eq!(
        client.event("message.removed", json!({"sessionID": ROOT, "messageID": "msg_1"})).changed,
        named
    );
}

#[test]
fn thinking_can_be_left_out_alike_however_it_comes() {
    let options = ConvertOptions::default().thinking(Thinking::Omit);
    let step = step(ROOT, "msg_1", 1);
    let thinking = |text: &str, end: Option<i64>| {
        part(&step, "prt_1", json!({"type": "reasoning", "text": text, "time": {"start": 1, "end": end}}))
    };
    let mut streamed = Client::with(options);
    streamed.message(&step);
    streamed.part(&thinking("", None));
    streamed.delta(&thinking("", None), "hm");
    streamed.part(&thinking("hm", Some(2)));
    streamed.part(&ended(&step, "prt_2", "yes"));
    let mut listed = Client::with(options);
    listed.list(ROOT, &[(&step, &[&thinking("hm", Some(2)), &ended(&step, "prt_2", "yes")])], Snapshot::Live);
    assert_eq!(streamed.texts("main"), ["yes"]);
    assert_eq!(streamed.state, listed.state);
}

#[test]
fn signatures_tell_snapshots_apart() {
    let step = step(ROOT, "msg_1", 1);
    let tool = |status: &str, output: &str| {
        part(
            &step,
            "prt_2",
            json!({"type": "tool", "callID": "c", "tool": "bash",
            "state": {"status": status, "input": {}, "metadata": {"output": output}}}),
        )
    };
    let sign = |info: &Value, parts: &[&Value]| message_signature(&list(&[(info, parts)])[0]);
    let mut failed = completed(step.clone());
    failed["error"] = json!({"name": "APIError"});
    let signatures = [
        sign(&step, &[]),
        sign(&completed(step.clone()), &[]),
        sign(&failed, &[]),
        sign(&user(ROOT, "msg_1", 1), &[]),
        sign(&step, &[&text(&step, "prt_1", "")]),
        sign(&step, &[&text(&step, "prt_1", "a")]),
        sign(&step, &[&ended(&step, "prt_1", "a")]),
        sign(&step, &[&text(&step, "prt_3", "a")]),
        sign(&step, &[&tool("pending", "")]),
        sign(&step, &[&tool("running", "")]),
        sign(&step, &[&tool("running", "so far")]),
        sign(&step, &[&text(&step, "prt_1", "a"), &tool("running", "so far")]),
    ];
    let distinct: std::collections::BTreeSet<u64> = signatures.into_iter().collect();
    assert_eq!(distinct.len(), signatures.len());
    // The same in every process, version and place.
    assert_eq!(sign(&step, &[]), 3_124_489_825_739_583_754);
}
