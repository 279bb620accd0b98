//! Two processes on one file: a hundred tasks, and kills at random.

use std::{collections::BTreeMap, time::Duration};

use futures_util::StreamExt;
use opencode_conductor::{
    ConversationManager, CreateTaskSession, MessageId, PromptError, PromptInput, SessionError, SessionId,
    Store, StoreErrorKind,
    test_util::{FakeOpenCode, FakeOptions, Script, Step},
};
use opencode_conductor_sqlite::SqliteStore;

use crate::{
    cell::Process,
    child::{Order, Said, say},
};

const TASKS: usize = 100;
const KILLS: usize = 20;

/// A worker: does every task that is neither done nor being done, until all are done.
pub(crate) async fn work(order: &Order, manager: &ConversationManager, store: &SqliteStore) {
    loop {
        // What dead workers have left.
        let restored = manager.restore().await.unwrap();
        let restored = restored.into_iter().map(|turn| async move {
            let task = task_number(&turn.record.prompt.message_id);
            report(task, turn.running.await);
        });
        futures_util::future::join_all(restored).await;
        let mut tasks: Vec<usize> = (0..order.prompts.len()).collect();
        fastrand::shuffle(&mut tasks);
        let done = futures_util::stream::iter(tasks).map(|task| one_task(order, manager, store, task));
        if done.buffer_unordered(4).all(std::future::ready).await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Does a task, unless it is done or another worker's. Whether it is done.
async fn one_task(order: &Order, manager: &ConversationManager, store: &SqliteStore, task: usize) -> bool {
    let name = format!("task-{task}");
    let create = CreateTaskSession::new("project", name.as_str(), &order.directory, &order.directory);
    let session = match manager.create_task_session(create).await {
        Ok(meta) => meta.session_id,
        Err(SessionError::TaskHasSession { session, .. }) => session,
        Err(SessionError::Store { source, .. }) if *source.kind() == StoreErrorKind::Taken => return false,
        Err(error) => panic!("{name}: {error:?}"),
    };
    let message = message_of(task);
    match store.claim_turn(&session, &message).await {
        Ok(Some(record)) if !record.is_open() => return true,
        Ok(_) => {}
        Err(error) if error.is_refusal() => return false,
        Err(error) => panic!("{name}: {error:?}"),
    }
    let input = PromptInput::new(session, &order.prompts[task]).message_id(message);
    report(task, manager.prompt(input).await)
}

fn report(task: usize, result: Result<opencode_conductor::PromptExecutionResult, PromptError>) -> bool {
    match result {
        Ok(result) => {
            let (ended, answer) = (result.completion.to_string(), result.answer());
            say(&Said::Done { step: task, ended, answer });
            true
        }
        Err(PromptError::NotClaimed { .. } | PromptError::TurnOpen { .. }) => false,
        Err(PromptError::NotRecorded { source: Some(source), .. }) => {
            let taken = source.downcast_ref::<opencode_conductor::StoreError>();
            assert!(taken.is_some_and(opencode_conductor::StoreError::is_refusal), "{source:?}");
            false
        }
        Err(error) => panic!("task {task}: {error:?}"),
    }
}

fn message_of(task: usize) -> MessageId {
    format!("msg_task{task}").into()
}

fn task_number(message: &MessageId) -> usize {
    message.as_str().strip_prefix("msg_task").and_then(|number| number.parse().ok()).unwrap()
}

pub(crate) async fn table() -> bool {
    let fake = FakeOpenCode::start_with(FakeOptions::new().time_scale(0.02)).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let prompts = (0..TASKS).map(|task| Script::new([Step::text(format!("answer {task}"))]).prompt("do it"));
    let order = Order {
        url: fake.url(),
        database: directory.path().join("turns.db"),
        directory: "/project/worktree".into(),
        prompts: prompts.collect(),
        is_worker: true,
        ..Order::default()
    };
    let mut workers = [Process::start(&order), Process::start(&order)];
    let mut reports: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let mut n_kills = 0;
    while workers.iter_mut().any(Process::is_running) {
        let victim = fastrand::usize(..2);
        let pause = Duration::from_millis(fastrand::u64(20..400));
        let [one, other] = &mut workers;
        tokio::select! {
            Some(said) = one.next() => hear(&mut reports, said),
            Some(said) = other.next() => hear(&mut reports, said),
            () = tokio::time::sleep(pause), if n_kills < KILLS => {
                let killed = &mut workers[victim];
                if killed.is_running() {
                    killed.kill().await;
                    while let Some(said) = killed.next().await {
                        hear(&mut reports, said);
                    }
                    *killed = Process::start(&order);
                    n_kills += 1;
                }
            }
            else => {}
        }
    }
    judge(&fake, &order, &reports, n_kills).await
}

fn hear(reports: &mut BTreeMap<usize, Vec<String>>, said: Said) {
    if let Said::Done { step, ended, answer } = said {
        reports.entry(step).or_default().push(format!("{ended}: {}", answer.unwrap_or_default()));
    }
}

async fn judge(
    fake: &FakeOpenCode,
    order: &Order,
    reports: &BTreeMap<usize, Vec<String>>,
    n_kills: usize,
) -> bool {
    let store = SqliteStore::open(&order.database).await.unwrap();
    let sessions = store.sessions().await.unwrap();
    let mut finished = 0;
    let mut ran_once = 0;
    for meta in &sessions {
        let task: usize =
            meta.task_id.as_ref().unwrap().as_str().strip_prefix("task-").unwrap().parse().unwrap();
        let record = store.claim_turn(&meta.session_id, &message_of(task)).await.unwrap();
        finished += usize::from(record.is_some_and(|record| !record.is_open()));
        let ran = runs(fake, &meta.session_id);
        if ran != [message_of(task).to_string()] {
            println!("    task {task} ran as {ran:?}, and said {:?}", reports.get(&task));
        }
        ran_once += usize::from(ran == [message_of(task).to_string()]);
    }
    let wrong = reports
        .iter()
        .filter(|(task, said)| said.iter().any(|said| *said != format!("settled: answer {task}")))
        .count();
    let twice = reports.values().filter(|said| said.len() > 1).count();
    let on_server = fake.sessions().len();
    println!("\nTwo processes on one file, {TASKS} tasks, {n_kills} random kills with -9\n");
    println!(
        "| sessions made | tasks finished | model runs of a task = 1 | reported | reported twice | wrong answers |"
    );
    println!("|---|---|---|---|---|---|");
    println!("| {on_server} | {finished} | {ran_once} | {} | {twice} | {wrong} |", reports.len());
    on_server == TASKS && finished == TASKS && ran_once == TASKS && twice == 0 && wrong == 0 && n_kills > 0
}

fn runs(fake: &FakeOpenCode, session: &SessionId) -> Vec<String> {
    fake.prompts_run(session.as_str())
}
