//! What a person on call reads: one line for each turn, with its task and session in the span and nowhere else.

use opencode_conductor::{
    ManagerBuilder, PromptError, PromptInput,
    test_util::{Fault, Route, Script, Step},
};

use crate::support::{
    sink::Sink,
    soon,
    stage::{Stage, ms, quick, texts, waits},
};

impl Sink {
    /// The lines with these words, as `LEVEL prompt{…}: fields`, with figures that differ from run to run as `_`.
    fn lines(&self, words: &str) -> Vec<String> {
        let text = self.text();
        let lines = text.lines().filter(|line| line.contains(words));
        lines.map(|line| normal(line.trim_start())).collect()
    }

    /// Inside a span that has them, ids are not said again.
    fn names_once(&self, id: &str) {
        let twice = self.lines(" prompt{").into_iter().find(|line| line.matches(id).count() > 1);
        assert_eq!(twice, None);
    }
}

fn normal(line: &str) -> String {
    let word = |word: &str| match word.split_once('=') {
        Some((name @ ("seconds" | "message_id"), _)) => format!("{name}=_"),
        _ => word.to_owned(),
    };
    line.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// A manager on a fake, and what is logged at these levels while it works.
async fn stage(
    level: tracing::Level,
    settings: impl FnOnce(ManagerBuilder) -> ManagerBuilder,
) -> (Stage, Sink, tracing::subscriber::DefaultGuard) {
    let sink = Sink::default();
    let logs = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(sink.clone())
        .with_ansi(false)
        .with_target(false)
        .without_time()
        .finish();
    let guard = tracing::subscriber::set_default(logs);
    (Stage::with(quick(), settings).await, sink, guard)
}

fn span(stage: &Stage) -> String {
    format!("prompt{{session={} task=task}}:", stage.session)
}

#[tokio::test]
async fn a_turn_that_settled_is_one_line() {
    let (stage, sink, _guard) = stage(tracing::Level::INFO, |manager| manager).await;
    stage.ask(&Script::new([Step::text("done").cost(0.25)])).await.unwrap();
    let made = format!("INFO session made task=task session={} directory=/project/worktree", stage.session);
    let settled = format!(
        "INFO {} turn settled outcome=\"settled\" seconds=_ tokens=15 cost=0.25 submissions=1",
        span(&stage)
    );
    let lines: Vec<String> = sink.text().lines().map(|line| normal(line.trim_start())).collect();
    assert_eq!(lines, [made, settled]);
}

#[tokio::test]
async fn a_turn_that_failed_is_a_warning_and_never_settled() {
    let (stage, sink, _guard) = stage(tracing::Level::WARN, |manager| manager).await;
    stage.ask(&Script::new([Step::error(400)])).await.unwrap();
    let failed = format!(
        "WARN {} turn did not settle outcome=\"failed\" reason=\"APIError 400\" seconds=_ tokens=0 cost=0.0 submissions=1",
        span(&stage)
    );
    assert_eq!(sink.lines(""), [failed]);
}

/// Not at any level: who looks for turns that went well must not find it.
#[tokio::test]
async fn no_line_of_a_turn_that_failed_calls_it_settled() {
    let (stage, sink, _guard) = stage(tracing::Level::TRACE, |manager| manager).await;
    stage.ask(&Script::new([Step::error(400)])).await.unwrap();
    let lines = sink.lines("");
    assert!(lines.iter().any(|line| line.contains("turn over")), "{lines:#?}");
    let settled: Vec<_> = lines.iter().filter(|line| line.to_lowercase().contains("settled")).collect();
    assert!(settled.is_empty(), "{settled:#?}");
    sink.names_once(stage.session.as_str());
}

#[tokio::test]
async fn a_turn_that_ran_out_of_time_says_so_with_or_without_an_answer() {
    let limits = waits().idle_timeout(ms(300));
    let (stage, sink, _guard) = stage(tracing::Level::WARN, |manager| manager.wait(limits).unwrap()).await;
    let begun = Script::new([Step::text("one two three four").gate_middle("never")]);
    stage.ask(&begun).await.unwrap();
    let silent = Script::new([Step::text("never").gate_before("never")]);
    let silent = stage.ask(&silent).await;
    let with_answer = format!(
        "WARN {} turn did not settle outcome=\"timed_out\" reason=\"no progress within idle_timeout\" seconds=_ tokens=0 cost=0.0 submissions=1",
        span(&stage)
    );
    let lines = sink.lines("outcome");
    assert_eq!(lines[0], with_answer);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[1].contains("outcome=\"timed_out\""), "{silent:?}: {lines:?}");
}

/// A person on call need not look at it, and finds the task all the same.
#[tokio::test]
async fn what_was_aborted_on_purpose_is_no_warning() {
    let (stage, sink, _guard) = stage(tracing::Level::INFO, |manager| manager).await;
    let first = stage.start(&Script::new([Step::text("one two").gate_middle("gate")]));
    let second = stage.start(&texts("never"));
    stage.fake.wait_at("gate").await;
    stage.manager.abort_all(&stage.session).await.unwrap();
    first.await.unwrap();
    second.await.unwrap_err();
    let mut lines = sink.lines("outcome");
    lines.sort();
    let line = |rest: &str| format!("INFO {} {rest}", span(&stage));
    assert_eq!(
        lines,
        [
            line(
                "prompt stopped outcome=\"aborted\" reason=\"aborted\" seconds=_ delivery=NotSent submissions=0"
            ),
            line("turn stopped outcome=\"aborted\" seconds=_ tokens=0 cost=0.0 submissions=1"),
        ]
    );
}

#[tokio::test]
async fn a_prompt_that_does_not_get_as_far_as_its_turn_is_a_warning() {
    let (stage, sink, _guard) = stage(tracing::Level::WARN, |manager| manager).await;
    stage.fake.inject(Route::GetSession, Fault::Status(401)).always();
    let error = stage.send(PromptInput::new("ses_other", "Say hello.")).await.unwrap_err();
    assert!(matches!(error, PromptError::Unauthorized { .. }), "{error:?}");
    let line = "WARN prompt{session=ses_other}: prompt has no result outcome=\"error\" reason=\"unauthorized\" seconds=_ delivery=NotSent submissions=0";
    assert_eq!(sink.lines("prompt has no result"), [line]);
}

#[tokio::test]
async fn a_prompt_that_was_sent_again_is_told_from_the_first_time() {
    let (stage, sink, _guard) = stage(tracing::Level::DEBUG, |manager| manager.wait(waits()).unwrap()).await;
    stage.fake.inject(Route::PromptAsync, Fault::LosePrompt);
    stage.ask(&texts("at last")).await.unwrap();
    let submit = |attempt: u32, kick: bool| {
        format!("DEBUG {} submit message_id=_ attempt={attempt} kick={kick}", span(&stage))
    };
    assert_eq!(sink.lines(" submit message_id="), [submit(1, false), submit(2, true)]);
    let settled = sink.lines("turn settled");
    assert_eq!(settled.len(), 1);
    assert!(settled[0].ends_with("submissions=2"), "{settled:?}");
    sink.names_once(stage.session.as_str());
    // One whose answer was lost is no kick.
    stage.fake.inject(Route::PromptAsync, Fault::DropBeforeEffect);
    stage.ask(&texts("at last")).await.unwrap();
    assert_eq!(sink.lines(" submit message_id=")[2..], [submit(1, false), submit(2, false)]);
}

#[tokio::test]
async fn an_abort_that_was_not_confirmed_names_its_session_once() {
    let limits = waits().idle_timeout(ms(300));
    let (stage, sink, _guard) = stage(tracing::Level::WARN, |manager| manager.wait(limits).unwrap()).await;
    let running = stage.start(&Script::new([Step::text("never").gate_before("never")]));
    soon(stage.fake.wait_at("never")).await;
    stage.fake.inject(Route::Status, Fault::Status(400)).always();
    soon(running).await.unwrap();
    stage.manager.abort(&stage.session).await.unwrap();
    let spans = [span(&stage), format!("abort{{session={}}}:", stage.session)];
    let lines = spans.map(|span| format!("WARN {span} the abort could not be confirmed"));
    assert_eq!(sink.lines("could not be confirmed"), lines);
}
