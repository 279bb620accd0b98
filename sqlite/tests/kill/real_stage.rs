//! The kills on a real server, alone and together with it.

use std::time::Duration;

use opencode_conductor::{
    OpenCodeOptions, parse_opencode,
    test_util::{Script, ScriptedTool, Step},
};
use serde_json::json;

use crate::{
    cell::{Heard, Process},
    child::{
        Call::{ClaimTask, Finished, Prepared, PutSession, Started, Submitted},
        Order, Point,
        Point::Store,
        When::{After, Before},
    },
    model::ScriptedModel,
    real::{RealOptions, RealServer},
    table::{self, Outcome},
};

/// Whether the server is killed as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    Lives,
    Dies,
}

fn rows() -> Vec<(&'static str, Point, Server)> {
    use Server::{Dies, Lives};
    vec![
        ("after the task is claimed", Store(ClaimTask, After), Lives),
        ("before the session is stored", Store(PutSession, Before), Lives),
        ("before `prepared` is recorded", Store(Prepared, Before), Lives),
        ("after `prepared` is recorded", Store(Prepared, After), Lives),
        ("after `submitted` is recorded", Store(Submitted, After), Lives),
        ("after `started` is recorded", Store(Started, After), Lives),
        ("while the answer is streamed", Point::Delta, Lives),
        ("while a permission is asked for", Point::Asked, Lives),
        ("before `finished` is recorded", Store(Finished, Before), Lives),
        ("after `finished` is recorded", Store(Finished, After), Lives),
        ("server too: after the task is claimed", Store(ClaimTask, After), Dies),
        ("server too: before the session is stored", Store(PutSession, Before), Dies),
        ("server too: before `prepared` is recorded", Store(Prepared, Before), Dies),
        ("server too: after `prepared` is recorded", Store(Prepared, After), Dies),
        ("server too: after `submitted` is recorded", Store(Submitted, After), Dies),
        ("server too: after `started` is recorded", Store(Started, After), Dies),
        ("server too: while the answer is streamed", Point::Delta, Dies),
        ("server too: while a permission is asked for", Point::Asked, Dies),
        ("server too: before `finished` is recorded", Store(Finished, Before), Dies),
        ("server too: after `finished` is recorded", Store(Finished, After), Dies),
    ]
}

pub(crate) async fn table(repeats: usize) -> bool {
    let Some(executable) = RealServer::find() else { return true };
    let repeats = repeats.min(3);
    let model = ScriptedModel::start().await;
    let options =
        RealOptions::new(executable, model.base_url()).config(json!({"permission": {"bash": "ask"}}));
    let mut server = RealServer::start(options).await;
    table::heading(&format!("Killed with -9 on a real server, each {repeats} times"));
    let (mut is_good, mut n_cells) = (true, 0);
    for (name, point, fate) in rows() {
        let mut outcomes = Vec::new();
        for _ in 0..repeats {
            n_cells += 1;
            outcomes.push(cell(&mut server, &model, point, fate, n_cells).await);
        }
        is_good &= table::row(name, &outcomes);
    }
    is_good
}

async fn cell(
    server: &mut RealServer,
    model: &ScriptedModel,
    point: Point,
    fate: Server,
    number: usize,
) -> Outcome {
    let directory = tempfile::tempdir().unwrap();
    let words = [format!("step 1 of cell {number}."), format!("step 2 of cell {number}.")];
    let gate = format!("gate-{number}");
    let mut steps = vec![Step::text("the new answer, word by word by word")];
    match point {
        Point::Delta | Store(Started, _) => steps[0].gate_middle = Some(gate.clone()),
        Point::Asked => {
            let bash = json!({"command": "echo made", "description": "d"});
            steps.insert(0, Step::tool(ScriptedTool::new("bash", bash)));
        }
        _ => {}
    }
    let mut order = Order {
        url: server.url().to_owned(),
        database: directory.path().join("turns.db"),
        directory: server.project(0),
        prompts: vec![
            Script::new([Step::text("the old answer")]).prompt(&words[0]),
            Script::new(steps).prompt(&words[1]),
        ],
        point: Some(point),
        ..Order::default()
    };
    let mut heard = Heard::default();
    let mut process = Process::start(&order);
    let mut has_gone_on = false;
    loop {
        let said = process.next().await.expect("the child stops before its end");
        if heard.hear(said) {
            break;
        }
        if heard.done.len() == 1 && !has_gone_on {
            has_gone_on = true;
            process.go_on().await;
        }
    }
    process.kill().await;
    while let Some(said) = process.next().await {
        heard.hear(said);
    }
    if fate == Server::Dies {
        // Its port may be another process's by now.
        server.restart_elsewhere().await;
        server.url().clone_into(&mut order.url);
    }
    model.open_gate(&gate);
    heard.finish(&order).await;
    judge(server, model, &heard, fate, &words, point).await
}

async fn judge(
    server: &RealServer,
    model: &ScriptedModel,
    heard: &Heard,
    fate: Server,
    words: &[String; 2],
    point: Point,
) -> Outcome {
    let (session, state) = heard.state.clone().expect("the second process tells the state");
    // What a run leaves behind trails its end.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let info = server.get(&format!("/session/{session}")).await;
    let messages = server.get(&format!("/session/{session}/message")).await;
    let document = json!({"info": info, "messages": messages}).to_string();
    let options = OpenCodeOptions::default().session(session.clone());
    let transcript = parse_opencode(&[&document], &options).unwrap().state;
    let answers = |step: usize| heard.done.iter().filter(move |(done, ..)| *done == step);
    let may_be_lost = fate == Server::Dies;
    let is_well = |ended: &str, answer: Option<&str>, expected: &str| {
        ended == "settled" && answer == Some(expected)
            || may_be_lost && (ended.starts_with("was interrupted") || ended.contains("lost the prompt"))
    };
    let expected = ["the old answer", "the new answer, word by word by word"];
    let is_finished = (0..2).all(|step| {
        answers(step).count() > 0
            && answers(step).all(|(_, ended, answer)| is_well(ended, answer.as_deref(), expected[step]))
    });
    let asked_again = heard.asked.iter().all(|task| task.as_deref() == Some("task"))
        && (point != Point::Asked || fate == Server::Dies || heard.asked.len() == 2);
    Outcome {
        is_finished,
        runs: [model.runs_of(&words[0]), model.runs_of(&words[1])],
        may_be_lost,
        state_is_transcript: table::is_same(&state, &transcript),
        is_own_answer: answers(1).all(|(.., answer)| answer.as_deref() != Some(expected[0])),
        trouble: (!is_finished || !asked_again).then(|| format!("{:?} {:?}", heard.done, heard.asked)),
    }
}
