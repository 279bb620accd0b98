//! The kills on the fake server.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use opencode_conductor::{
    OpenCodeOptions, parse_opencode,
    test_util::{FakeOpenCode, FakeOptions, Fault, Moment, Route, Script, ScriptedTool, Step},
};
use serde_json::json;
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{
    cell::{Heard, Process},
    child::{
        Call::{ClaimTask, Finished, Prepared, PutSession, Started, Submitted},
        Order, Point,
        Point::Store,
        When::{After, Before, Inside},
    },
    table::{self, Outcome},
};

/// What makes the server stop at a point.
#[derive(Debug, Clone)]
enum Server {
    Nothing,
    Fault(Route, Fault),
    Hold(Moment),
    /// The answer stops in the middle.
    Streaming,
    /// The tool does not end.
    Tool,
    /// The tool asks first.
    Asks,
}

fn rows() -> Vec<(&'static str, Point, Server)> {
    let delay = |route| Server::Fault(route, Fault::DelayUntil("gate".to_owned()));
    let unanswered = |route| Server::Fault(route, Fault::HoldAnswerUntil("gate".to_owned()));
    let (server, none) = (Point::Elsewhere, || Server::Nothing);
    vec![
        ("before the task is claimed", Store(ClaimTask, Before), none()),
        ("while the task is claimed", Store(ClaimTask, Inside), none()),
        ("after the task is claimed", Store(ClaimTask, After), none()),
        ("while the session is made, before it is", server, delay(Route::CreateSession)),
        ("while the session is made, after it is", server, unanswered(Route::CreateSession)),
        ("before the session is stored", Store(PutSession, Before), none()),
        ("while the session is stored", Store(PutSession, Inside), none()),
        ("after the session is stored", Store(PutSession, After), none()),
        ("before `prepared` is recorded", Store(Prepared, Before), none()),
        ("while `prepared` is recorded", Store(Prepared, Inside), none()),
        ("after `prepared` is recorded", Store(Prepared, After), none()),
        ("while `submitted` is recorded", Store(Submitted, Inside), none()),
        ("after `submitted` is recorded", Store(Submitted, After), none()),
        ("while the prompt is sent, before it arrives", server, delay(Route::PromptAsync)),
        ("while the prompt is sent, after it arrived", server, unanswered(Route::PromptAsync)),
        ("accepted, not yet stored by the server", server, Server::Hold(Moment::BeforeStore)),
        ("stored by the server, not yet run", server, Server::Hold(Moment::BeforeRun)),
        ("before `started` is recorded", Store(Started, Before), Server::Streaming),
        ("after `started` is recorded", Store(Started, After), Server::Streaming),
        ("while the answer is streamed", server, Server::Streaming),
        ("while a tool runs", server, Server::Tool),
        ("while a permission is asked for", Point::Asked, Server::Asks),
        ("after idle, before the end of the turn", server, Server::Hold(Moment::Tail)),
        ("before `finished` is recorded", Store(Finished, Before), none()),
        ("while `finished` is recorded", Store(Finished, Inside), none()),
        ("after `finished` is recorded", Store(Finished, After), none()),
        ("with the result, before the caller has it", Point::Result, none()),
    ]
}

/// Whether the store keeps its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Records {
    Kept,
    /// As if each record were written after the effect that it is about, and the kill had come between the two.
    Late,
}

/// The same kills with a store that writes too late: if the table cannot tell, it proves nothing.
pub(crate) async fn table_of_a_wrong_store() -> bool {
    table::heading(
        "Killed with -9 on the fake server, with a store that writes after the effect: each must be caught",
    );
    let mut all_caught = true;
    let arrived = "while the prompt is sent, after it arrived";
    for name in [arrived, "while the answer is streamed", "before `finished` is recorded"] {
        let (_, point, server) = rows().into_iter().find(|(row, ..)| *row == name).unwrap();
        let outcome = cell(point, &server, Records::Late).await;
        table::row(name, std::slice::from_ref(&outcome));
        all_caught &= !outcome.is_good() && outcome.runs[1] == 2;
    }
    all_caught
}

pub(crate) async fn table(repeats: usize) -> bool {
    table::heading(&format!("Killed with -9 on the fake server, each {repeats} times"));
    let mut is_good = true;
    let at_once = Arc::new(Semaphore::new(4));
    for (name, point, server) in rows() {
        let mut cells = JoinSet::new();
        for _ in 0..repeats {
            let (at_once, server) = (Arc::clone(&at_once), server.clone());
            cells.spawn(async move {
                let _permit = at_once.acquire().await.unwrap();
                cell(point, &server, Records::Kept).await
            });
        }
        is_good &= table::row(name, &cells.join_all().await);
    }
    is_good
}

fn prompt(server: &Server) -> String {
    let mut steps = vec![Step::text("the new answer")];
    let bash = || ScriptedTool::new("bash", json!({"command": "make", "description": "d"})).output("made\n");
    match server {
        Server::Streaming => steps[0].gate_middle = Some("gate".to_owned()),
        Server::Tool => {
            let mut tool = bash();
            tool.result.gate = Some("gate".to_owned());
            steps.insert(0, Step::tool(tool));
        }
        Server::Asks => {
            let mut tool = bash();
            tool.result.ask = Some(("bash".to_owned(), "make".to_owned()));
            steps.insert(0, Step::tool(tool));
        }
        Server::Nothing | Server::Fault(..) | Server::Hold(_) => {}
    }
    Script::new(steps).prompt("step 2")
}

fn arm(fake: &FakeOpenCode, server: &Server) {
    match server {
        Server::Fault(route, fault) => drop(fake.inject(*route, fault.clone())),
        Server::Hold(moment) => fake.hold(*moment, "gate"),
        Server::Nothing | Server::Streaming | Server::Tool | Server::Asks => {}
    }
}

async fn cell(point: Point, server: &Server, records: Records) -> Outcome {
    let fake = FakeOpenCode::start_with(FakeOptions::new().time_scale(0.02)).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let order = Order {
        url: fake.url(),
        database: directory.path().join("turns.db"),
        directory: "/project/worktree".into(),
        prompts: vec![Script::new([Step::text("the old answer")]).prompt("step 1"), prompt(server)],
        point: Some(point),
        ..Order::default()
    };
    let mut heard = Heard::default();
    let mut process = Process::start(&order);
    let at_creation = matches!(server, Server::Fault(Route::CreateSession, _));
    if at_creation {
        arm(&fake, server);
    }
    loop {
        let at_server = async {
            if point != Point::Elsewhere {
                std::future::pending::<()>().await;
            }
            fake.wait_at("gate").await;
        };
        tokio::select! {
            said = process.next() => {
                let said = said.expect("the child stops before its end");
                if heard.hear(said) {
                    break;
                }
                if heard.done.len() == 1 && heard.sent.len() == 1 {
                    arm(&fake, server);
                    process.go_on().await;
                    // Once is enough.
                    heard.sent.insert(usize::MAX, "none".into());
                }
            }
            () = at_server => break,
        }
    }
    heard.sent.remove(&usize::MAX);
    if matches!(point, Store(_, Inside)) {
        process.go_on().await;
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..4000))).await;
    }
    process.kill().await;
    while let Some(said) = process.next().await {
        heard.hear(said);
    }
    fake.clear_faults();
    for moment in [Moment::BeforeStore, Moment::BeforeRun, Moment::Tail] {
        fake.release(moment);
    }
    fake.open_gate("gate");
    if records == Records::Late {
        let database = rusqlite::Connection::open(&order.database).unwrap();
        database.execute("DELETE FROM turns WHERE is_open", []).unwrap();
        heard.sent.remove(&1);
    }
    heard.finish(&order).await;
    judge(&fake, &heard, matches!(server, Server::Asks))
}

fn judge(fake: &FakeOpenCode, heard: &Heard, asks: bool) -> Outcome {
    let (session, state) = heard.state.clone().expect("the second process tells the state");
    let infos = fake.sessions();
    let answers = |step: usize| heard.done.iter().filter(move |(done, ..)| *done == step);
    let expected = [Some("the old answer"), Some("the new answer")];
    let is_finished = (0..2).all(|step| {
        answers(step).count() > 0
            && answers(step)
                .all(|(_, ended, answer)| ended == "settled" && answer.as_deref() == expected[step])
    });
    let ran = fake.prompts_run(session.as_str());
    let messages = fake.messages(session.as_str());
    let runs = [1, 2].map(|step| {
        let is_it = |message: &&String| {
            let stored = messages.iter().find(|stored| stored["info"]["id"] == message.as_str());
            stored.is_some_and(|stored| stored["parts"].to_string().contains(&format!("step {step}")))
        };
        ran.iter().filter(is_it).count()
    });
    let document =
        json!({"info": infos.iter().find(|info| info["id"] == session.as_str()), "messages": messages});
    let options = OpenCodeOptions::default().session(session.clone());
    let transcript = parse_opencode(&[&document.to_string()], &options).unwrap().state;
    let mut trouble = Vec::new();
    if infos.len() != 1 {
        trouble.push(format!("{} sessions", infos.len()));
    }
    if ran.len() != 2 || ran.iter().collect::<BTreeSet<_>>().len() != 2 {
        trouble.push(format!("ran {ran:?}"));
    }
    // Both processes were asked, with the task.
    if asks && heard.asked != [Some("task".to_owned()), Some("task".to_owned())] {
        trouble.push(format!("asked {:?}", heard.asked));
    }
    Outcome {
        is_finished,
        runs,
        may_be_lost: false,
        state_is_transcript: table::is_same(&state, &transcript),
        is_own_answer: answers(1).all(|(.., answer)| answer.as_deref() != expected[0]),
        trouble: (!trouble.is_empty()).then(|| format!("{}: {:?}", trouble.join(", "), heard.done)),
    }
}
