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

use futures_util::FutureExt;
use serde_json::Value;

use self::{scenarios::Scenario, stage::Stage, target::Target};

/// The slowest scenario waits for a heartbeat and a cold server.
const SCENARIO_LIMIT: Duration = Duration::from_secs(150);

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
    let mut failures = Vec::new();
    let mut n_played = 0;
    for (setup, scenarios) in scenarios::all() {
        let scenarios: Vec<Scenario> = scenarios.into_iter().filter(is_wanted).collect();
        if scenarios.is_empty() {
            continue;
        }
        let Some(mut target) = Target::real(setup).await else {
            return;
        };
        for scenario in scenarios {
            n_played += 1;
            let record = play(&mut target, &scenario).await;
            if std::env::var_os("UPDATE_EXPECT").is_some() && record.is_object() {
                std::fs::write(expected_file(scenario.name), pretty(&record)).expect("write the record");
            }
            failures.extend(compare(scenario.name, &record));
        }
    }
    println!("{n_played} scenarios played on the real server");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
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
