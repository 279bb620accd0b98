//! The fake does what the real server does.
//!
//! Every scenario is played on both and its record, with what may differ made equal, is compared with the file of its
//! name under `expected/`, which was written by the real server. So the fake is held to the real server's behaviour
//! even where there is none, and a new release that behaves differently is noticed.
//!
//! `UPDATE_EXPECT=1` writes the files anew, from the real server only. `SCENARIO=name` plays only scenarios whose name
//! contains that text.

#![cfg(feature = "test-util")]
#![expect(clippy::expect_used, reason = "a broken test rig should stop the test")]

#[path = "../support/model.rs"]
mod model;
#[path = "../support/real.rs"]
mod real;

mod events;
mod normal;
mod scenarios;
mod stage;
mod target;

use std::{panic::AssertUnwindSafe, path::PathBuf, time::Duration};

use futures_util::{FutureExt, StreamExt, stream};
use serde_json::Value;

use self::{
    real::RealServer,
    scenarios::Scenario,
    stage::Stage,
    target::{Setup, Target},
};

/// The slowest scenario waits for a heartbeat and a cold server.
const SCENARIO_LIMIT: Duration = Duration::from_secs(150);
/// A server is one more process that needs seconds to start.
const SCENARIOS_OF_A_SERVER: usize = 35;
/// More would make each of them slower than it is alone.
const SERVERS_AT_ONCE: usize = 3;

#[tokio::test(flavor = "multi_thread")]
async fn the_fake_does_what_was_recorded() {
    let mut failures = Vec::new();
    let mut n_played = 0;
    for (setup, scenarios) in scenarios::all() {
        let mut target = Target::fake(setup).await;
        for scenario in scenarios.into_iter().filter(is_wanted) {
            n_played += 1;
            failures.extend(compare(scenario.name, &play(&mut target, &scenario).await));
        }
    }
    println!("{n_played} scenarios played on the fake");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_server_does_what_was_recorded() {
    let Some(executable) = RealServer::find() else { return };
    let played = stream::iter(shares()).map(|(setup, scenarios)| {
        let executable = executable.clone();
        async move {
            let mut target = Target::real(executable, setup).await;
            let mut records = Vec::new();
            for scenario in scenarios {
                records.push((scenario.name, play(&mut target, &scenario).await));
            }
            records
        }
    });
    let records = played.buffer_unordered(SERVERS_AT_ONCE).collect::<Vec<_>>().await.concat();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        for (name, record) in records.iter().filter(|(_, record)| record.is_object()) {
            std::fs::write(expected_file(name), pretty(record)).expect("write the record");
        }
    }
    println!("{} scenarios played on the real server", records.len());
    let failures: Vec<String> = records.iter().filter_map(|(name, record)| compare(name, record)).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The wanted scenarios, dealt out to servers: most of the time they wait.
fn shares() -> Vec<(Setup, Vec<Scenario>)> {
    let mut shares = Vec::new();
    for (setup, scenarios) in scenarios::all() {
        let wanted: Vec<Scenario> = scenarios.into_iter().filter(is_wanted).collect();
        let n_servers = wanted.len().div_ceil(SCENARIOS_OF_A_SERVER);
        let mut dealt: Vec<Vec<Scenario>> = (0..n_servers).map(|_| Vec::new()).collect();
        for (index, scenario) in wanted.into_iter().enumerate() {
            dealt[index % n_servers].push(scenario);
        }
        shares.extend(dealt.into_iter().map(|scenarios| (setup.clone(), scenarios)));
    }
    shares
}

fn is_wanted(scenario: &Scenario) -> bool {
    std::env::var("SCENARIO").map_or(true, |wanted| scenario.name.contains(&wanted))
}

/// The record of a scenario; one that breaks off does not keep the others from being played.
async fn play(target: &mut Target, scenario: &Scenario) -> Value {
    let playing = async {
        let mut stage = Stage::open(target, scenario.name).await;
        (scenario.play)(&mut stage).await;
        stage.finish().await
    };
    let caught = AssertUnwindSafe(tokio::time::timeout(SCENARIO_LIMIT, playing)).catch_unwind();
    match caught.await {
        Ok(Ok(record)) => record,
        Ok(Err(_)) => "took too long".into(),
        Err(panic) => format!("broke off: {:?}", panic.downcast_ref::<String>()).into(),
    }
}

fn compare(name: &str, record: &Value) -> Option<String> {
    let expected = std::fs::read_to_string(expected_file(name)).unwrap_or_default();
    let actual = pretty(record);
    (expected != actual).then(|| format!("── {name}\n{}", difference(&expected, &actual)))
}

fn expected_file(name: &str) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/expected");
    directory.join(format!("{name}.json"))
}

fn pretty(record: &Value) -> String {
    let mut text = serde_json::to_string_pretty(record).expect("JSON");
    text.push('\n');
    text
}

/// The lines that differ, with some around them.
fn difference(expected: &str, actual: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), actual.lines().collect());
    // common[i][j]: how many lines old[i..] and new[j..] have in common.
    let mut common = vec![vec![0_u32; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = if old[i] == new[j] {
                common[i + 1][j + 1] + 1
            } else {
                common[i + 1][j].max(common[i][j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut lines = Vec::new();
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            lines.push((' ', old[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || (i < old.len() && common[i + 1][j] >= common[i][j + 1]) {
            lines.push(('-', old[i]));
            i += 1;
        } else {
            lines.push(('+', new[j]));
            j += 1;
        }
    }
    let is_near = |index: usize| {
        let around = &lines[index.saturating_sub(4)..lines.len().min(index + 4)];
        around.iter().any(|(sign, _)| *sign != ' ')
    };
    let shown = lines.iter().enumerate().filter(|(index, _)| is_near(*index)).take(200);
    shown.map(|(_, (sign, line))| format!("{sign} {line}\n")).collect::<Vec<_>>().concat()
}
