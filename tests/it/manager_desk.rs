//! The desk of pending approvals, policies of one session, and what was refused.

use std::sync::Arc;

use futures_util::StreamExt;
use opencode_conductor::{
    AnswerError, ApprovalDesk, Ask, Completion, ConversationManager, Decision, ManagerBuilder, MemoryStore,
    Method, PermissionPolicy, PromptExecutionResult, PromptInput, QuestionPolicy, RawRequest, RestoredTurn,
    Update,
    test_util::{FakeOpenCode, Script, ScriptedTool, Step},
};
use serde_json::json;

use super::support::{
    soon,
    stage::{Stage, WORKTREE, asking_tool, client, create, ms, quick, task, texts, waits},
};

fn asked_by(desk: &ApprovalDesk) -> impl Fn(ManagerBuilder) -> ManagerBuilder + use<> {
    let desk = desk.clone();
    move |manager| manager.permissions(desk.permissions()).questions(desk.questions())
}

fn asks_then_says(tool: ScriptedTool, text: &str) -> Script {
    Script::new([Step::tool(tool), Step::text(text)])
}

fn question() -> ScriptedTool {
    let questions = json!([{"question": "Which port?", "header": "Port", "options": []}]);
    ScriptedTool::new("question", json!({"questions": questions}))
}

/// The desk once so many requests wait on it.
async fn with_pending(desk: &ApprovalDesk, count: usize) -> Vec<Ask> {
    soon(desk.watch().filter(|asks| std::future::ready(asks.len() == count)).next()).await.unwrap()
}

fn output(result: &PromptExecutionResult) -> String {
    serde_json::to_string(&result.conversation).unwrap()
}

#[tokio::test]
async fn a_request_is_listed_and_answered_once() {
    let desk = ApprovalDesk::new();
    let stage = Stage::with(quick(), asked_by(&desk)).await;
    assert_eq!(desk.pending(), []);
    // A subagent asks, and the desk knows for whom.
    let running = stage.start(&asks_then_says(task(&asks_then_says(asking_tool("touch x"), "made")), "done"));
    let [ask] = &with_pending(&desk, 1).await[..] else { panic!("one request") };
    assert_eq!(ask.root, stage.session);
    assert_eq!(ask.task.as_ref().unwrap().as_str(), "task");
    assert_eq!(ask.path.len(), 2, "{:?}", ask.path);
    assert_eq!(ask.permission().unwrap().patterns, ["touch x"]);

    let unfit = desk.answer(&ask.root, &ask.id, Decision::Answer(vec![vec!["yes".to_owned()]]));
    assert!(matches!(unfit, Err(AnswerError::Unfit(_))), "{unfit:?}");
    let stranger = desk.answer(&"ses_other".into(), &ask.id, Decision::AllowOnce);
    assert!(matches!(stranger, Err(AnswerError::NotPending { .. })), "{stranger:?}");
    assert_eq!(desk.pending().len(), 1, "it still waits");

    assert_eq!(desk.answer(&ask.root, &ask.id, Decision::AllowOnce).as_ref(), Ok(ask));
    let again = desk.answer(&ask.root, &ask.id, Decision::Reject("No.".to_owned()));
    assert!(matches!(again, Err(AnswerError::NotPending { .. })), "{again:?}");
    let result = soon(running).await.unwrap();
    assert_eq!(result.completion, Completion::Settled);
    assert_eq!(result.refused, []);
    assert_eq!(desk.pending(), []);
}

#[tokio::test]
async fn a_question_is_answered_from_the_desk() {
    let desk = ApprovalDesk::new();
    let stage = Stage::with(quick(), asked_by(&desk)).await;
    let running = stage.start(&asks_then_says(question(), "done"));
    let ask = with_pending(&desk, 1).await.remove(0);
    let too_many = Decision::Answer(vec![vec!["1".to_owned()], vec!["2".to_owned()]]);
    assert!(desk.answer(&ask.root, &ask.id, too_many).is_err());
    desk.answer(&ask.root, &ask.id, Decision::Answer(vec![vec!["5432".to_owned()]])).unwrap();
    let result = soon(running).await.unwrap();
    assert!(output(&result).contains("5432"));
    assert_eq!(result.refused, []);
}

#[tokio::test]
async fn what_is_answered_elsewhere_or_aborted_leaves_the_desk() {
    let desk = ApprovalDesk::new();
    let stage = Stage::with(quick(), asked_by(&desk)).await;
    let last = Step::text("done").gate_middle("end");
    let running = stage.start(&Script::new([Step::tool(asking_tool("touch x")), last]));
    let ask = with_pending(&desk, 1).await.remove(0);
    let reply = RawRequest::new(Method::Post, format!("/permission/{}/reply", ask.id))
        .query("directory", WORKTREE)
        .json(json!({"reply": "once"}));
    stage.manager.client().unwrap().raw(reply).await.unwrap();
    // While the turn still runs.
    with_pending(&desk, 0).await;
    stage.fake.open_gate("end");
    let result = soon(running).await.unwrap();
    assert_eq!((&result.completion, &result.refused[..]), (&Completion::Settled, &[][..]));
    assert!(desk.answer(&ask.root, &ask.id, Decision::AllowOnce).is_err());

    let running = stage.start(&asks_then_says(asking_tool("touch y"), "done"));
    with_pending(&desk, 1).await;
    let request = desk.pending()[0].id.clone();
    let (_, mut updates) = stage.manager.watch(&stage.session).unwrap();
    soon(stage.manager.abort(&stage.session)).await.unwrap();
    assert_eq!(soon(running).await.unwrap().completion, Completion::Aborted);
    with_pending(&desk, 0).await;
    // Who shows requests elsewhere is told as well.
    loop {
        match soon(updates.next()).await {
            Some(Update::RequestClosed(closed)) => break assert_eq!(closed, request),
            Some(_) => {}
            None => panic!("the updates ended"),
        }
    }
}

#[tokio::test]
async fn a_request_is_on_the_desk_again_after_a_restart() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    let store = Arc::new(MemoryStore::default());
    let manager = |desk: &ApprovalDesk| {
        let builder = ConversationManager::builder(client(&fake)).wait(waits()).unwrap();
        asked_by(desk)(builder.store(Arc::new(store.another_handle()))).build()
    };
    let (before, after) = (ApprovalDesk::new(), ApprovalDesk::new());
    let first = manager(&before);
    let session = create(&first, "task").await;
    let script = asks_then_says(asking_tool("touch x"), "done");
    let running = first.prompt(PromptInput::new(session.clone(), script.prompt("do it"))).start();
    let asked = with_pending(&before, 1).await;
    first.shutdown().await;
    drop(running);
    assert_eq!(before.pending(), []);

    let second = manager(&after);
    let mut restored = soon(second.restore()).await.unwrap();
    assert_eq!(restored.len(), 1);
    let RestoredTurn { running, .. } = restored.remove(0);
    assert_eq!(with_pending(&after, 1).await, asked);
    after.answer(&session, &asked[0].id, Decision::AllowOnce).unwrap();
    let result = soon(running).await.unwrap();
    assert_eq!((result.completion.clone(), result.answer().as_deref()), (Completion::Settled, Some("done")));
    assert_eq!(fake.prompts_run(session.as_str()).len(), 1);
}

#[tokio::test]
async fn a_desk_that_no_one_looks_at_holds_nothing_up_for_ever() {
    let desk = ApprovalDesk::new().patience(ms(100)).unwrap();
    let stage = Stage::with(quick(), asked_by(&desk)).await;
    let result = stage.ask(&asks_then_says(asking_tool("touch x"), "went on")).await.unwrap();
    assert_eq!(result.answer().as_deref(), Some("went on"));
    assert_eq!(result.refused.len(), 1);
    assert!(ApprovalDesk::new().patience(ms(0)).is_err());
}

#[tokio::test]
async fn what_was_refused_is_named_and_counted() {
    let stage = Stage::new().await;
    let script =
        Script::new([Step::tool(asking_tool("touch x")), Step::tool(question()), Step::text("done")]);
    let result = stage.ask(&script).await.unwrap();
    let [tool, asked] = &result.refused[..] else { panic!("{:?}", result.refused) };
    assert_eq!(tool.permission().unwrap().patterns, ["touch x"]);
    assert_eq!(asked.questions()[0].header, "Port");
    let allowed = stage.send(stage.input(&script).permissions(PermissionPolicy::AllowOnce)).await.unwrap();
    assert_eq!(allowed.refused.len(), 1, "only the question");
    assert_eq!(stage.manager.statistics().turns.refusals, 3);
    // In words of one's own as well, which the model reads as the answer.
    let asks = asks_then_says(question(), "done");
    let rejects = QuestionPolicy::ask(|_| async { Decision::Reject("Find out yourself.".to_owned()) });
    let rejected = stage.send(stage.input(&asks).questions(rejects)).await.unwrap();
    assert_eq!(rejected.refused.len(), 1);
    assert!(output(&rejected).contains("Find out yourself."));
    let answers = QuestionPolicy::ask(|_| async { Decision::Answer(vec![vec!["8080".to_owned()]]) });
    assert_eq!(stage.send(stage.input(&asks).questions(answers)).await.unwrap().refused, []);
}

#[tokio::test]
async fn the_nearest_policy_decides() {
    let stage = Stage::with(quick(), |manager| manager.permissions(PermissionPolicy::FailTurn)).await;
    let other = create(&stage.manager, "other").await;
    stage.manager.set_permissions(&stage.session, PermissionPolicy::AllowOnce).unwrap();
    let answers = QuestionPolicy::ask(|_| async { Decision::Answer(vec![vec!["8080".to_owned()]]) });
    stage.manager.set_questions(&stage.session, answers).unwrap();
    let script = asks_then_says(asking_tool("touch x"), "done");
    let asked = stage.ask(&asks_then_says(question(), "done")).await.unwrap();
    assert!(asked.refused.is_empty() && output(&asked).contains("8080"));

    let by_session = stage.ask(&script).await.unwrap();
    assert_eq!((by_session.completion.clone(), by_session.refused.len()), (Completion::Settled, 0));
    let by_prompt = stage.send(stage.input(&script).permissions(PermissionPolicy::Reject)).await.unwrap();
    assert_eq!((by_prompt.completion.clone(), by_prompt.refused.len()), (Completion::Settled, 1));
    let by_manager = PromptInput::new(other, script.prompt("do it"));
    assert_eq!(stage.send(by_manager).await.unwrap().completion, Completion::Refused);

    let unknown = stage.manager.set_permissions(&"ses_unknown".into(), PermissionPolicy::Reject);
    assert!(unknown.is_err());
    assert_eq!(stage.ask(&texts("fine")).await.unwrap().refused, []);
}
