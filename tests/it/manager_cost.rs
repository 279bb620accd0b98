//! What a turn costs, in requests and bytes: counts, so the same on every machine.

use opencode_conductor::{
    Completion, ConversationManager, PromptInput,
    test_util::{FakeOpenCode, Flavour, Route, Script, Step},
};
use serde_json::Value;

use super::support::stage::{Stage, bash, client, create, quick, texts};

/// Bytes that the events of a session have on the wire, without its deltas.
fn event_bytes(stage: &Stage, from: usize) -> u64 {
    let log = stage.fake.log();
    let of_session = log.events[from..].iter().filter(|event| event.session == stage.session.as_str());
    of_session.map(|event| event.properties.to_string().len() as u64).sum()
}

#[tokio::test]
async fn a_turn_costs_a_handful_of_requests_however_much_happens() {
    for n_old in [10, 100, 300] {
        let stage = Stage::of(quick()).await;
        // Old messages are large: a client that reads them needlessly is found out.
        for _ in 0..n_old / 10 {
            let mut steps: Vec<Step> = (0..8).map(|_| bash("cat", &"x".repeat(7_000))).collect();
            steps.push(Step::text("read"));
            stage.ask_unwatched(&Script::new(steps)).await.unwrap();
        }
        assert_eq!(stage.fake.messages(stage.session.as_str()).len(), n_old);
        for n_events in [50, 500, 2_000] {
            let case = format!("{n_events} events over {n_old} messages");
            let mut last = Step::text("");
            last.words = n_events;
            let script = Script::new([bash("ls", "x\n"), last]);
            let before = stage.fake.log();
            let result = stage.ask_unwatched(&script).await.unwrap();
            assert_eq!(result.completion, Completion::Settled, "{case}");
            stage.check(&case, &result);
            let after = stage.fake.log();
            let new = &after.requests[before.requests.len()..];
            assert!(new.len() <= 6, "{case}: {:#?}", new.iter().map(|r| &r.path).collect::<Vec<_>>());
            assert_eq!(new.iter().filter(|request| request.route == Route::Event).count(), 0, "{case}");
            // What was read: the answers, and the stream's share.
            let of_stream = |log: &opencode_conductor::test_util::Log| -> u64 {
                log.requests.iter().filter(|r| r.route == Route::Event).map(|r| r.bytes_out).sum()
            };
            let streamed = of_stream(&after) - of_stream(&before);
            let read: u64 = new.iter().map(|request| request.bytes_out).sum();
            let messages: Vec<Value> = stage.fake.messages(stage.session.as_str());
            let of_turn: u64 =
                messages[messages.len() - 3..].iter().map(|m| m.to_string().len() as u64).sum();
            let events = streamed.max(event_bytes(&stage, before.events.len()));
            let budget = (events + of_turn) * 3 / 2;
            assert!(streamed + read <= budget, "{case}: {streamed} + {read} of {budget} bytes");
        }
    }
}

#[tokio::test]
async fn the_first_turn_of_a_session_costs_little_more() {
    let stage = Stage::new().await;
    let before = stage.fake.requests().len();
    stage.ask(&texts("hello")).await.unwrap();
    let requests = stage.fake.requests();
    let paths: Vec<&str> = requests[before..].iter().map(|request| request.path.as_str()).collect();
    assert!(paths.len() <= 6, "{paths:?}");
}

#[tokio::test]
async fn a_first_turn_does_not_read_what_others_did_before_it() {
    let stage = Stage::new().await;
    let other = ConversationManager::builder(client(&stage.fake)).build();
    other.adopt_session("theirs", &stage.session).await.unwrap();
    for n in 0..50 {
        let prompt = PromptInput::new(stage.session.clone(), texts(&n.to_string()).prompt("go"));
        super::support::soon(other.prompt(prompt).into_future()).await.unwrap();
    }
    let before = stage.requests(Route::ListMessages);
    let result = stage.ask(&texts("mine")).await.unwrap();
    assert_eq!(result.answer().as_deref(), Some("mine"));
    assert_eq!(stage.requests(Route::ListMessages) - before, 1);
}

#[tokio::test]
async fn a_release_without_message_events_costs_a_bounded_number_of_requests() {
    for flavour in [Flavour::V1_15_0, Flavour::V1_1] {
        let fake = FakeOpenCode::start_with(quick().flavour(flavour)).await.unwrap();
        let manager = ConversationManager::builder(client(&fake)).build();
        let session = create(&manager, "task").await;
        let mut last = Step::text("");
        last.words = 2_000;
        let steps = (0..20).map(|_| bash("ls", "x\n")).chain([last]);
        let script = Script::new(steps);
        let before = fake.requests().len();
        let prompt = manager.prompt(PromptInput::new(session.clone(), script.prompt("go")));
        let result = super::support::soon(prompt.into_future()).await.unwrap();
        assert_eq!(result.completion, Completion::Settled);
        assert_eq!(result.messages.opencode().len(), 21);
        let requests = fake.requests();
        let paths: Vec<&str> = requests[before..].iter().map(|request| request.path.as_str()).collect();
        assert!(paths.len() <= 12, "{flavour:?}: {paths:?}");
    }
}
