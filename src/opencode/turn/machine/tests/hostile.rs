//! A server that says anything about sessions and their parents, and a model that names any session in a call.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// The root, and sessions that may belong to another turn.
const SESSIONS: [&str; 6] = [ROOT, "ses_a", "ses_b", "ses_c", "ses_d", "ses_e"];

/// Something that a hostile server says; sessions by their number.
#[derive(Debug, Clone)]
enum Said {
    Created {
        session: usize,
        parent: Option<usize>,
    },
    Updated {
        session: usize,
        parent: Option<usize>,
    },
    Deleted {
        session: usize,
    },
    /// A task call in a session, which names another.
    Names {
        session: usize,
        named: usize,
    },
    Asks {
        session: usize,
    },
    Runs {
        session: usize,
    },
    Gap,
    /// The next read shows these as children, these as pending.
    Read {
        children: Vec<(usize, Option<usize>)>,
        pending: Vec<usize>,
    },
    Time,
}

fn any_said() -> impl Strategy<Value = Said> {
    let session = || 0..SESSIONS.len();
    let parent = || proptest::option::of(session());
    prop_oneof![
        (session(), parent()).prop_map(|(session, parent)| Said::Created { session, parent }),
        (session(), parent()).prop_map(|(session, parent)| Said::Updated { session, parent }),
        session().prop_map(|session| Said::Deleted { session }),
        (session(), session()).prop_map(|(session, named)| Said::Names { session, named }),
        session().prop_map(|session| Said::Asks { session }),
        session().prop_map(|session| Said::Runs { session }),
        Just(Said::Gap),
        (proptest::collection::vec((session(), parent()), 0..4), proptest::collection::vec(session(), 0..4))
            .prop_map(|(children, pending)| Said::Read { children, pending }),
        Just(Said::Time),
    ]
}

/// All that the server ever said about parents, and what follows from it.
#[derive(Debug, Default)]
struct Told(BTreeSet<(usize, usize)>);

impl Told {
    fn hear(&mut self, session: usize, parent: Option<usize>) {
        self.0.extend(parent.map(|parent| (session, parent)));
    }

    /// The sessions of which the server has ever said that they descend from the root.
    fn descendants(&self) -> BTreeSet<&'static str> {
        let mut found = BTreeSet::from([0]);
        while let Some((session, _)) =
            self.0.iter().find(|(session, parent)| found.contains(parent) && !found.contains(session))
        {
            found.insert(*session);
        }
        found.into_iter().map(|session| SESSIONS[session]).collect()
    }
}

struct Attack {
    bench: Bench,
    told: Told,
    n_requests: usize,
    n_asked: usize,
}

impl Attack {
    fn info(&mut self, session: usize, parent: Option<usize>) -> SessionInfo {
        self.told.hear(session, parent);
        let parent_id = parent.map(|parent| SESSIONS[parent].into());
        SessionInfo { id: SESSIONS[session].into(), parent_id, ..SessionInfo::default() }
    }

    fn request(&mut self, session: usize) -> PermissionRequest {
        self.n_requests += 1;
        let id = format!("per_{}_{}", SESSIONS[session], self.n_requests);
        PermissionRequest {
            id: id.as_str().into(),
            session_id: SESSIONS[session].into(),
            ..PermissionRequest::default()
        }
    }

    fn say(&mut self, said: Said) -> Vec<Done> {
        match said {
            Said::Created { session, parent } => {
                let info = self.info(session, parent);
                self.bench.event(EventPayload::SessionCreated(info))
            }
            Said::Updated { session, parent } => {
                let info = self.info(session, parent);
                self.bench.event(EventPayload::SessionUpdated(info))
            }
            Said::Deleted { session } => {
                let info = SessionInfo { id: SESSIONS[session].into(), ..SessionInfo::default() };
                self.bench.event(EventPayload::SessionDeleted(info))
            }
            Said::Names { session, named } => {
                let number = 50 + u32::try_from(session).unwrap();
                self.bench.step_of(SESSIONS[session], number, None);
                let metadata = [("sessionId".to_owned(), SESSIONS[named].into())];
                let state = ToolState {
                    status: ToolStatus::Running,
                    metadata: Some(metadata.into_iter().collect()),
                    ..ToolState::default()
                };
                let tool = ToolPart { tool: "task".to_owned(), state, ..ToolPart::default() };
                let part = Part::new(
                    PartId::new(format!("prt_{session}_{named}")),
                    SESSIONS[session].into(),
                    message_id(number).as_str().into(),
                    PartBody::Tool(Box::new(tool)),
                );
                self.bench.event(EventPayload::PartUpdated { part, delta: None })
            }
            Said::Asks { session } => {
                let request = self.request(session);
                self.bench.event(EventPayload::PermissionAsked(request))
            }
            Said::Runs { session } => {
                self.bench.step_of(SESSIONS[session], 70, None);
                self.bench.status_of(SESSIONS[session], SessionStatus::Busy)
            }
            Said::Gap => self.bench.input(Input::StreamGap),
            Said::Time => self.bench.wait(SECOND),
            Said::Read { children, pending } => {
                let Some(Read { id, .. }) = self.bench.read.take() else { return Vec::new() };
                let children = children.into_iter().map(|(child, parent)| self.info(child, parent)).collect();
                let permissions = Some(pending.into_iter().map(|session| self.request(session)).collect());
                let reading =
                    Reading { children, permissions, questions: Some(Vec::new()), ..Reading::default() };
                self.bench.input(Input::ReadDone(id, reading))
            }
        }
    }

    /// Nothing is asked, aborted or counted of a session that the server did not call the root's.
    fn check(&mut self, done: &[Done]) {
        let ours = self.told.descendants();
        for session in self.bench.tree.confirmed() {
            assert!(ours.contains(session.as_str()), "{session} is confirmed, of {ours:?}");
        }
        for done in done {
            if let Done::Ask(request) = done {
                self.n_asked += 1;
                let asks = |session: &&str| request.as_str().starts_with(&format!("per_{session}_"));
                assert!(ours.iter().any(asks), "{request} is answered, of {ours:?}");
            }
        }
        #[cfg(feature = "client")]
        {
            let counted = crate::opencode::outcome::usage_of(&self.bench.tree, &PROMPT.into(), None);
            assert!(counted.keys().all(|session| ours.contains(session.as_str())), "{counted:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_policy_never_answers_for_a_session_outside_the_confirmed_tree(
        script in proptest::collection::vec(any_said(), 1..40)
    ) {
        let mut attack = Attack {
            bench: Bench::with(WaitOptions::default()).into_running(),
            told: Told::default(),
            n_requests: 0,
            n_asked: 0,
        };
        for said in script {
            let done = attack.say(said);
            attack.check(&done);
        }
    }
}

#[test]
fn a_request_is_held_until_the_server_confirms_whose_it_is() {
    let mut bench = Bench::running();
    assert_eq!(bench.task(1, ToolStatus::Running, false), [read(false, false, true)], "it is looked up");
    assert_eq!(bench.asks(CHILD, "per_1", 70), [], "the model's word is not enough");
    assert_eq!(bench.child(), [Done::Ask("per_1".into())], "the server's is");
    assert_eq!(bench.child(), [], "once");
}

#[test]
fn a_request_that_was_held_and_answered_by_its_owner_is_not_asked() {
    let mut bench = Bench::running();
    bench.task(1, ToolStatus::Running, false);
    bench.asks(CHILD, "per_1", 70);
    let reply = serde_json::json!({"sessionID": CHILD, "requestID": "per_1", "reply": "once"});
    let event = serde_json::json!({"type": "permission.replied", "properties": reply});
    bench.input(Input::Event(ServerEvent::from_json(&event.to_string()).unwrap().into()));
    assert_eq!(bench.child(), []);
}

/// What a stranger's session does keeps no turn alive: the call that waits for it is a tool that runs.
#[test]
fn a_turn_that_waits_for_a_stranger_has_the_limit_of_a_tool() {
    let options = WaitOptions::default().idle_timeout(5 * SECOND).tool_timeout(60 * SECOND);
    let mut bench = Bench::with(options).into_running();
    bench.task(1, ToolStatus::Running, false);
    bench.read_fails();
    bench.read = None;
    let began = bench.now;
    loop {
        bench.step_of(CHILD, 70, None);
        bench.status_of(CHILD, SessionStatus::Busy);
        let done = bench.wait(SECOND);
        if done.contains(&Done::Abort) {
            break;
        }
        if bench.read.take().is_some() {
            assert!(bench.now < began + 120 * SECOND, "a stranger's work is no progress");
        }
    }
    assert!(bench.now >= began + 50 * SECOND, "but a tool may take its time");
}

/// Tells a turn of so many children of its root, each with a step and then a call that names it, in batches as they come from the
/// stream.
#[cfg(target_os = "linux")]
fn flood(n_children: usize) -> Duration {
    let mut bench = Bench::running();
    let began = cpu_time();
    let mut n_heard = 0;
    let mut hear = |payload: EventPayload| {
        let event = Input::Event(ServerEvent::new(payload).into());
        bench.turn.handle(bench.now, &mut bench.tree, event);
        n_heard += 1;
        if n_heard % 256 == 0 {
            bench.turn.advance(bench.now, &mut bench.tree);
        }
    };
    let step = |id: &str, session: &str| AssistantMessage {
        id: id.into(),
        session_id: session.into(),
        time: MessageTime { created: Millis::new(1), ..MessageTime::default() },
        ..AssistantMessage::default()
    };
    hear(EventPayload::MessageUpdated(MessageInfo::Assistant(Box::new(step("msg_root", ROOT)))));
    for index in 0..n_children {
        let child = format!("ses_{index}");
        let info =
            SessionInfo { id: child.as_str().into(), parent_id: Some(ROOT.into()), ..SessionInfo::default() };
        hear(EventPayload::SessionCreated(info));
        let step = step(&format!("msg_{index}"), &child);
        hear(EventPayload::MessageUpdated(MessageInfo::Assistant(Box::new(step))));
        let metadata = [("sessionId".to_owned(), child.as_str().into())];
        let state = ToolState { metadata: Some(metadata.into_iter().collect()), ..ToolState::default() };
        let tool = ToolPart { tool: "task".to_owned(), state, ..ToolPart::default() };
        let body = PartBody::Tool(Box::new(tool));
        let part = Part::new(PartId::new(format!("prt_{index}")), ROOT.into(), "msg_root".into(), body);
        hear(EventPayload::PartUpdated { part, delta: None });
    }
    let spent = cpu_time().saturating_sub(began);
    assert_eq!((bench.tree.children().count(), bench.tree.n_dropped()), (n_children, 0));
    spent
}

/// What this thread has computed so far: unlike time, not a matter of what else the machine does.
#[cfg(target_os = "linux")]
fn cpu_time() -> Duration {
    let spent = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(spent.split(' ').next().unwrap().parse().unwrap())
}

#[cfg(target_os = "linux")]
#[test]
fn many_children_cost_in_proportion() {
    let (few, many) = (flood(2000), flood(16_000));
    println!("2,000 children take {few:?}, 16,000 take {many:?}");
    assert!(many < 3 * 8 * few, "2,000 children take {few:?}, 16,000 take {many:?}");
}

#[test]
fn sessions_nested_too_deeply_are_dropped_and_counted() {
    let mut bench = Bench::running();
    let mut parent = SessionId::new(ROOT);
    for index in 0..1000 {
        let id = SessionId::new(format!("ses_{index:04}"));
        let info = SessionInfo { id: id.clone(), parent_id: Some(parent), ..SessionInfo::default() };
        bench.event(EventPayload::SessionCreated(info));
        parent = id;
    }
    // Those below the first that was dropped have no parent here.
    assert_eq!((bench.tree.children().count(), bench.tree.n_dropped()), (64, 1));
}

#[test]
fn sessions_messages_and_requests_beyond_the_limits_are_dropped_and_counted() {
    let mut tree = SessionTree::new(ROOT.into(), ConvertOptions::default());
    for index in 0..32_768 + 9 {
        let id = SessionId::new(format!("ses_{index}"));
        tree.apply_session(&SessionInfo { id, parent_id: Some(ROOT.into()), ..SessionInfo::default() });
    }
    assert_eq!((tree.sessions().count(), tree.n_dropped()), (32_768, 10));

    // The bound is lower in tests.
    let mut tree = SessionTree::new(ROOT.into(), ConvertOptions::default());
    let prompt = |index: usize| {
        let mut user = UserMessage::default();
        (user.id, user.session_id) = (format!("msg_{index}").as_str().into(), ROOT.into());
        ServerEvent::new(EventPayload::MessageUpdated(MessageInfo::User(user)))
    };
    for index in 0..(1 << 15) + 9 {
        tree.apply_event(prompt(index));
    }
    tree.apply_event(prompt(0));
    assert_eq!((tree.messages(&ROOT.into()).count(), tree.n_dropped()), (1 << 15, 9));

    let mut bench = Bench::running();
    for index in 0..9000 {
        bench.asks(ROOT, &format!("per_{index}"), 70);
    }
    let asked = bench.done.iter().filter(|done| matches!(done, Done::Ask(_))).count();
    assert_eq!((asked, bench.turn.n_dropped()), (8192, 9000 - 8192));
}
