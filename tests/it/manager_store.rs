//! A manager and its store: what is written, what is restored, and what happens when the store fails.

use std::{
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use opencode_conductor::{
    Allowed, Completion, ConversationManager, CreateTaskSession, Decision, Delivery, Directory,
    ManagerBuilder, MemoryStore, PermissionPolicy, Phase, PromptError, PromptInput, SessionError, Store,
    StoreError, StoreErrorKind, WhenStoreFails,
    test_util::{
        Effect, FakeOpenCode, Fault, ModelPrice, Route, Script, Step, StoreCall, TappedStore,
        store_suite::{self, StoreUnderTest},
    },
};

use futures_util::StreamExt;
use tokio::sync::watch;

use crate::support::{
    soon,
    stage::{WORKTREE, asking_tool, client, create, gated_text, ms, quick, texts, waits},
};

struct Shared(MemoryStore);

impl StoreUnderTest for Shared {
    fn open(&self) -> opencode_conductor::BoxFuture<'_, Box<dyn Store>> {
        let handle: Box<dyn Store> = Box::new(self.0.another_handle());
        Box::pin(std::future::ready(handle))
    }
}

#[tokio::test]
async fn memory_does_what_every_store_does() {
    store_suite::run(|| Shared(MemoryStore::default())).await;
}

/// A store that is away while a flag says so, and counts what it did.
fn away(memory: &MemoryStore, is_away: &Arc<AtomicBool>) -> (Arc<TappedStore>, watch::Receiver<usize>) {
    let is_away = Arc::clone(is_away);
    let (done, n_done) = watch::channel(0);
    let store = TappedStore::new(Arc::new(memory.another_handle()), move |_, effect| {
        let error = StoreError::new("writing", StoreErrorKind::Unavailable);
        let answer = if is_away.load(SeqCst) { Err(error) } else { Ok(()) };
        if answer.is_ok() && effect == Effect::After {
            done.send_modify(|n| *n += 1);
        }
        Box::pin(std::future::ready(answer))
    });
    (Arc::new(store), n_done)
}

fn builder(fake: &FakeOpenCode, store: Arc<dyn Store>) -> ManagerBuilder {
    ConversationManager::builder(client(fake)).store(store).wait(waits()).unwrap()
}

fn input(session: &opencode_conductor::SessionId, script: &Script) -> PromptInput {
    PromptInput::new(session.clone(), script.prompt("do it"))
}

#[tokio::test]
async fn a_turn_costs_four_writes() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    let written = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&written);
    let store = TappedStore::new(Arc::new(MemoryStore::default()), move |call, effect| {
        if effect == Effect::After {
            log.lock().unwrap().push(call);
        }
        Box::pin(std::future::ready(Ok(())))
    });
    let manager = builder(&fake, Arc::new(store)).build();
    let session = create(&manager, "task").await;
    soon(manager.prompt(input(&session, &texts("an answer"))).into_future()).await.unwrap();
    let turn = [Phase::Prepared, Phase::Submitted, Phase::Started, Phase::Finished].map(StoreCall::PutTurn);
    let mut expected = vec![StoreCall::ClaimTask, StoreCall::PutSession];
    expected.extend(turn);
    assert_eq!(*written.lock().unwrap(), expected);
}

#[tokio::test]
async fn a_turn_goes_on_without_its_store_and_is_recorded_later() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    let (memory, is_away) = (MemoryStore::default(), Arc::new(AtomicBool::new(false)));
    let (store, mut n_done) = away(&memory, &is_away);
    let manager = builder(&fake, store).when_store_fails(WhenStoreFails::GoOn).build();
    let session = create(&manager, "task").await;
    is_away.store(true, SeqCst);
    let running = manager.prompt(input(&session, &gated_text("gate", "an answer"))).start();
    soon(fake.wait_at("gate")).await;
    assert!(memory.open_turns().is_empty());
    is_away.store(false, SeqCst);
    soon(async {
        while memory.open_turns().is_empty() {
            n_done.changed().await.unwrap();
        }
    })
    .await;
    assert_ne!(memory.open_turns()[0].phase, Phase::Prepared, "it catches up with what has happened");
    is_away.store(true, SeqCst);
    fake.open_gate("gate");
    let result = soon(running).await.unwrap();
    assert_eq!(result.completion, Completion::Settled);
    is_away.store(false, SeqCst);
    soon(async {
        while !memory.open_turns().is_empty() {
            n_done.changed().await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn a_session_that_could_not_be_stored_is_stored_later() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    let (memory, is_away) = (MemoryStore::default(), Arc::new(AtomicBool::new(true)));
    let (store, mut n_done) = away(&memory, &is_away);
    let manager = builder(&fake, store).when_store_fails(WhenStoreFails::GoOn).build();
    let kept = create(&manager, "kept").await;
    let forgotten = create(&manager, "forgotten").await;
    manager.forget(&forgotten);
    assert_eq!(memory.sessions().await.unwrap(), []);
    is_away.store(false, SeqCst);
    soon(async {
        while memory.sessions().await.unwrap().is_empty() {
            n_done.changed().await.unwrap();
        }
    })
    .await;
    soon(manager.shutdown()).await;
    let stored = memory.sessions().await.unwrap();
    assert_eq!(stored.iter().map(|meta| &meta.session_id).collect::<Vec<_>>(), [&kept]);
    assert_eq!(stored[0].task_id, Some("kept".into()));
}

#[tokio::test]
async fn a_store_that_does_not_answer_fails_the_turn_which_is_never_sent() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    for phase in [Phase::Prepared, Phase::Submitted] {
        let memory = MemoryStore::default();
        let hangs = Arc::new(AtomicBool::new(true));
        let still = Arc::clone(&hangs);
        // It writes, and does not say so.
        let store = TappedStore::new(Arc::new(memory.another_handle()), move |call, effect| {
            let is_it = call == StoreCall::PutTurn(phase) && effect == Effect::After;
            let hangs = is_it && still.swap(false, SeqCst);
            Box::pin(async move { if hangs { pending().await } else { Ok(()) } })
        });
        let manager = builder(&fake, Arc::new(store)).store_timeout(ms(100)).unwrap().build();
        let session = create(&manager, "task").await;
        let error = soon(manager.prompt(input(&session, &texts("never"))).into_future()).await.unwrap_err();
        let PromptError::NotRecorded { source: Some(source), .. } = &error else { panic!("{error:?}") };
        let source: &StoreError = source.downcast_ref().unwrap();
        assert_eq!(*source.kind(), StoreErrorKind::Unavailable);
        assert!(!hangs.load(SeqCst));
        assert!(
            memory.open_turns().is_empty(),
            "{phase:?}: what the caller was told has failed is not sent later"
        );
        assert_eq!(fake.prompts_run(session.as_str()).len(), 0, "{phase:?}");
    }
}

#[tokio::test]
async fn an_open_turn_is_resumed_before_the_next_prompt() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    let memory = MemoryStore::default();
    let first = builder(&fake, Arc::new(memory.another_handle())).build();
    let session = create(&first, "task").await;
    soon(first.prompt(input(&session, &texts("the old answer"))).into_future()).await.unwrap();
    let running = first.prompt(input(&session, &gated_text("gate", "the new answer"))).start();
    soon(fake.wait_at("gate")).await;
    let open = memory.open_turns().remove(0);
    soon(first.shutdown()).await;
    assert_eq!(soon(running).await.unwrap().completion, Completion::GivenUp);
    fake.open_gate("gate");

    let second = builder(&fake, Arc::new(memory.another_handle())).build();
    let error = soon(second.prompt(input(&session, &texts("next"))).into_future()).await.unwrap_err();
    let PromptError::TurnOpen { message_id, .. } = error else { panic!("{error:?}") };
    assert_eq!(message_id, open.prompt.message_id);
    let resumed = soon(second.resume(session.clone(), message_id)).await.unwrap();
    assert_eq!(resumed.answer().as_deref(), Some("the new answer"));
    assert_eq!(resumed.submission.prompt, open.prompt.text);
    let next = soon(second.prompt(input(&session, &texts("next"))).into_future()).await.unwrap();
    assert_eq!(next.answer().as_deref(), Some("next"));
    assert_eq!(fake.prompts_run(session.as_str()).len(), 3);
}

#[tokio::test]
async fn a_prompt_under_an_id_of_ones_own_runs_once() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    let first = ConversationManager::builder(client(&fake)).wait(waits()).unwrap().build();
    let session = create(&first, "task").await;
    let prompt = || input(&session, &gated_text("gate", "an answer")).message_id("msg_own1");
    let running = first.prompt(prompt()).start();
    soon(fake.wait_at("gate")).await;
    drop(running);
    soon(first.shutdown()).await;
    fake.open_gate("gate");
    // Another process, without a store: it attaches, by either call.
    let second = ConversationManager::builder(client(&fake)).wait(waits()).unwrap().build();
    let resumed = soon(second.resume(session.clone(), "msg_own1")).await.unwrap();
    let again = soon(second.prompt(prompt()).into_future()).await.unwrap();
    for result in [resumed, again] {
        assert_eq!(
            (&result.completion, result.answer().as_deref()),
            (&Completion::Settled, Some("an answer"))
        );
    }
    let unknown = soon(second.resume(session.clone(), "msg_unknown")).await.unwrap_err();
    assert!(matches!(unknown, PromptError::Interrupted { .. }), "{unknown:?}");
    assert_eq!(fake.prompts_run(session.as_str()), ["msg_own1"]);
}

#[tokio::test]
async fn a_prompt_that_is_over_gives_its_own_result_again_whatever_came_after_it() {
    let fake = FakeOpenCode::start_with(quick().price("mock/m", ModelPrice::new(1.0, 2.0))).await.unwrap();
    let memory = MemoryStore::default();
    let first = builder(&fake, Arc::new(memory.another_handle())).build();
    let session = create(&first, "task").await;
    let failing = Script::new([Step::error(400)]);
    let mut results = Vec::new();
    // Two of them say the same.
    for script in [texts("one"), failing, texts("two"), texts("two")] {
        results.push(soon(first.prompt(input(&session, &script)).into_future()).await.unwrap());
    }
    soon(first.shutdown()).await;

    // Each of them took one step, and all of them together more than one may.
    let limits = waits().max_steps(2);
    let with_store = builder(&fake, Arc::new(memory.another_handle())).wait(limits.clone()).unwrap().build();
    let without = ConversationManager::builder(client(&fake)).wait(limits).unwrap().build();
    for (result, n) in results.into_iter().zip(0..) {
        let (session, message) = (&result.submission.session_id, &result.submission.message_id);
        let same =
            PromptInput::new(session.clone(), result.submission.prompt.clone()).message_id(message.clone());
        let again = [
            with_store.resume(session.clone(), message.clone()),
            without.resume(session.clone(), message.clone()),
            with_store.prompt(same.clone()).start(),
            without.prompt(same).start(),
        ];
        for (again, way) in again.into_iter().zip(0..) {
            let again = soon(again).await.unwrap();
            let case = format!("prompt {n}, way {way}");
            assert_eq!(again.answer(), result.answer(), "{case}");
            assert_eq!(again.completion, result.completion, "{case}");
            assert_eq!(
                (again.usage, &again.usage_by_session),
                (result.usage, &result.usage_by_session),
                "{case}"
            );
            assert_eq!(again.messages.opencode(), result.messages.opencode(), "{case}");
            assert_eq!(again.other_prompts, [], "{case}");
        }
    }
    assert_eq!(fake.prompts_run(session.as_str()).len(), 4);
}

#[tokio::test]
async fn a_dropped_prompt_is_sent_never_or_once() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    let memory = MemoryStore::default();
    let at_prepared = Arc::new(tokio::sync::Notify::new());
    let told = Arc::clone(&at_prepared);
    let holds = AtomicUsize::new(0);
    let store = TappedStore::new(Arc::new(memory.another_handle()), move |call, effect| {
        let is_first = call == StoreCall::PutTurn(Phase::Prepared)
            && effect == Effect::After
            && holds.fetch_add(1, SeqCst) == 0;
        let told = Arc::clone(&told);
        Box::pin(async move {
            if is_first {
                told.notify_one();
                // Until no prompt waits for it any more.
                pending::<()>().await;
            }
            Ok(())
        })
    });
    let manager = builder(&fake, Arc::new(store)).build();
    let session = create(&manager, "task").await;
    let unsent = manager.prompt(input(&session, &texts("never"))).start();
    soon(at_prepared.notified()).await;
    drop(unsent);
    soon(async {
        while manager.statistics().turns.given_up < 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let running = manager.prompt(input(&session, &gated_text("gate", "one"))).start();
    soon(fake.wait_at("gate")).await;
    let open = memory.open_turns();
    assert_eq!(open.len(), 1, "what was dropped before it was sent is over");
    drop(running);
    soon(async {
        while manager.statistics().turns.given_up < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(memory.open_turns(), open, "what was sent can be resumed");
    fake.open_gate("gate");
    let next = soon(manager.prompt(input(&session, &texts("two"))).into_future()).await.unwrap();
    assert_eq!(next.answer().as_deref(), Some("two"));
    assert!(memory.open_turns().is_empty());
    assert_eq!(fake.prompts_run(session.as_str()).len(), 2);
}

#[tokio::test]
async fn one_process_makes_the_session_of_a_task() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    let memory = MemoryStore::default();
    let first = builder(&fake, Arc::new(memory.another_handle())).build();
    let second = builder(&fake, Arc::new(memory.another_handle())).build();
    let request = || CreateTaskSession::new("project", "task", "/project", WORKTREE);
    fake.inject(Route::CreateSession, Fault::HoldAnswerUntil("gate".to_owned()));
    let making = first.create_task_session(request());
    let meanwhile = async {
        fake.wait_at("gate").await;
        let error = second.create_task_session(request()).await.unwrap_err();
        let SessionError::Store { source, .. } = &error else { panic!("{error:?}") };
        assert_eq!(*source.kind(), StoreErrorKind::Taken);
        assert!(error.is_retryable());
    };
    // The first dies before it has an answer.
    soon(async {
        tokio::select! {
            made = making => panic!("{made:?}"),
            () = meanwhile => {}
        }
    })
    .await;
    drop(first);
    fake.open_gate("gate");
    let made = soon(second.create_task_session(request())).await.unwrap();
    assert_eq!(fake.sessions().len(), 1, "what the first made is found by its tag");
    let third = builder(&fake, Arc::new(memory.another_handle())).build();
    let error = soon(third.create_task_session(request())).await.unwrap_err();
    assert!(matches!(error, SessionError::TaskHasSession { session, .. } if session == made.session_id));
    assert!(soon(third.restore()).await.unwrap().is_empty());
    assert_eq!(third.session(&made.session_id), Some(made.clone()), "without asking the server");
    soon(third.delete(&made.session_id)).await.unwrap();
    third.shutdown().await;
    assert_eq!(memory.sessions().await.unwrap(), []);
}

#[tokio::test]
async fn a_task_finds_its_session_without_a_store() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    let first = ConversationManager::builder(client(&fake)).build();
    let session = create(&first, "task").await;
    create(&first, "other").await;
    let second = ConversationManager::builder(client(&fake)).build();
    let directory = Directory::new(WORKTREE).unwrap();
    let found = soon(second.find_task_session("task", &directory)).await.unwrap().unwrap();
    assert_eq!((&found.session_id, found.task_id), (&session, Some("task".into())));
    assert_eq!(second.task_session_id(&"task".into()), Some(session));
    assert_eq!(soon(second.find_task_session("none", &directory)).await.unwrap(), None);
}

#[tokio::test]
async fn an_open_permission_is_asked_again_with_its_task() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    let memory = MemoryStore::default();
    let asked = Arc::new(tokio::sync::Notify::new());
    let told = Arc::clone(&asked);
    let waits_for_ever = PermissionPolicy::ask(move |_| {
        told.notify_one();
        pending::<Decision>()
    });
    let first = builder(&fake, Arc::new(memory.another_handle())).permissions(waits_for_ever).build();
    let session = create(&first, "task").await;
    let script = Script::new([Step::tool(asking_tool("touch x")), Step::text("allowed")]);
    let running = first.prompt(input(&session, &script)).start();
    soon(asked.notified()).await;
    soon(first.shutdown()).await;
    drop(running);
    let tasks = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&tasks);
    let allows = PermissionPolicy::ask(move |ask| {
        log.lock().unwrap().push(ask.task);
        std::future::ready(Decision::AllowOnce)
    });
    let second = builder(&fake, Arc::new(memory.another_handle())).permissions(allows).build();
    let turn = soon(second.restore()).await.unwrap().remove(0);
    assert_eq!(soon(turn.running).await.unwrap().answer().as_deref(), Some("allowed"));
    assert_eq!(*tasks.lock().unwrap(), [Some("task".into())]);
    assert_eq!(fake.prompts_run(session.as_str()).len(), 1);
}

/// A prompt that may take long in one process may take as long in the next.
#[tokio::test]
async fn the_limits_of_a_prompt_go_with_it() {
    for own in [None, Some(ms(300))] {
        let fake = FakeOpenCode::start_with(quick()).await.unwrap();
        let memory = MemoryStore::default();
        let first = builder(&fake, Arc::new(memory.another_handle())).build();
        let session = create(&first, "task").await;
        let mut prompt = input(&session, &gated_text("gate", "one two"));
        if let Some(limit) = own {
            prompt = prompt.idle_timeout(limit);
        }
        let running = first.prompt(prompt).start();
        soon(fake.wait_at("gate")).await;
        soon(first.shutdown()).await;
        drop(running);
        let second = builder(&fake, Arc::new(memory.another_handle())).build();
        let turn = soon(second.restore()).await.unwrap().remove(0);
        assert_eq!(turn.record.limits.as_ref().map(|limits| limits.idle_timeout), own);
        if own.is_none() {
            fake.open_gate("gate");
        }
        let result = soon(turn.running).await.unwrap();
        match own {
            Some(limit) => {
                let Completion::TimedOut { allowed, .. } = &result.completion else { panic!("{result:?}") };
                assert_eq!(*allowed, Some(Allowed::Time(limit)));
            }
            None => assert_eq!(result.completion, Completion::Settled),
        }
    }
}

#[tokio::test]
async fn a_turn_that_cannot_be_gone_on_with_says_how_far_it_got() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    let memory = MemoryStore::default();
    let first = builder(&fake, Arc::new(memory.another_handle())).build();
    let session = create(&first, "task").await;
    let running = first.prompt(input(&session, &gated_text("gate", "one two"))).start();
    soon(fake.wait_at("gate")).await;
    soon(first.shutdown()).await;
    drop(running);
    fake.inject(Route::GetSession, Fault::Status(500)).always();
    let second = builder(&fake, Arc::new(memory.another_handle())).build();
    let turn = soon(second.restore()).await.unwrap().remove(0);
    let error = soon(turn.running).await.unwrap_err();
    assert!(matches!(error, PromptError::Session { .. }), "{error:?}");
    assert_eq!(error.delivery(), Delivery::Started, "{error:?}");
    assert_eq!((error.session(), error.task()), (Some(&session), Some(&"task".into())));
    let written = serde_json::to_value(&error).unwrap();
    assert_eq!((&written["delivery"], &written["taskId"]), (&"started".into(), &"task".into()));
}

/// An abort does not wait for a store that does not answer: nothing was sent.
#[tokio::test]
async fn an_abort_does_not_wait_for_the_store() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    let (asked, waits) = (Arc::new(tokio::sync::Notify::new()), Arc::new(AtomicBool::new(true)));
    let (told, stuck) = (Arc::clone(&asked), Arc::clone(&waits));
    let store = TappedStore::new(Arc::new(MemoryStore::default()), move |call, effect| {
        if matches!(call, StoreCall::PutTurn(_)) && effect == Effect::Before && stuck.swap(false, SeqCst) {
            told.notify_one();
            return Box::pin(pending());
        }
        Box::pin(std::future::ready(Ok(())))
    });
    let manager = builder(&fake, Arc::new(store)).build();
    let session = create(&manager, "task").await;
    let running = manager.prompt(input(&session, &texts("never"))).start();
    soon(asked.notified()).await;
    assert!(soon(manager.abort(&session)).await.unwrap().confirmed);
    let error = soon(running).await.unwrap_err();
    assert!(matches!(error, PromptError::Aborted { .. }), "{error:?}");
    assert_eq!(fake.request_count(Route::PromptAsync), 0);
}

/// Who sends prompts under ids of its own may drop one at any time and send it again.
#[tokio::test]
async fn a_prompt_that_is_dropped_while_it_is_recorded_can_be_sent_again() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    let (asked, go_on) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let (told, waits) = (Arc::clone(&asked), Arc::clone(&go_on));
    let is_first = AtomicBool::new(true);
    let memory = MemoryStore::default();
    let store = TappedStore::new(Arc::new(memory.another_handle()), move |call, effect| {
        let is_held = call == StoreCall::PutTurn(Phase::Prepared) && effect == Effect::Before;
        if !is_held || !is_first.swap(false, SeqCst) {
            return Box::pin(std::future::ready(Ok(())));
        }
        told.notify_one();
        let waits = Arc::clone(&waits);
        Box::pin(async move {
            waits.notified().await;
            Ok(())
        })
    });
    let manager = builder(&fake, Arc::new(store)).build();
    let session = create(&manager, "task").await;
    let prompt = || input(&session, &texts("at last")).message_id("msg_own");
    let running = manager.prompt(prompt()).start();
    soon(asked.notified()).await;
    drop(running);
    go_on.notify_one();
    let result = soon(manager.prompt(prompt()).into_future()).await.unwrap();
    assert_eq!(result.answer().as_deref(), Some("at last"));
    assert_eq!(fake.prompts_run(session.as_str()), ["msg_own"]);
}

#[tokio::test]
async fn a_restore_leaves_alone_what_runs_here_or_elsewhere() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    let memory = MemoryStore::default();
    let manager = builder(&fake, Arc::new(memory.another_handle())).build();
    let session = create(&manager, "task").await;
    let running = manager.prompt(input(&session, &gated_text("gate", "one"))).start();
    soon(fake.wait_at("gate")).await;
    let elsewhere = builder(&fake, Arc::new(memory.another_handle())).build();
    for manager in [&manager, &elsewhere] {
        assert!(soon(manager.restore()).await.unwrap().is_empty());
    }
    let message = memory.open_turns()[0].prompt.message_id.clone();
    let error = soon(elsewhere.resume(session.clone(), message)).await.unwrap_err();
    assert!(matches!(error, PromptError::NotClaimed { .. }), "{error:?}");
    fake.open_gate("gate");
    assert_eq!(soon(running).await.unwrap().answer().as_deref(), Some("one"));
}

#[tokio::test]
async fn a_prompt_that_did_not_run_can_be_sent_again_under_its_id() {
    // What the server has stored can only be run before anything else is said in the session.
    for (fault, times, others) in [(Fault::Status(400), 1, 1), (Fault::LosePrompt, 4, 0)] {
        let fake = FakeOpenCode::start_with(quick()).await.unwrap();
        let memory = MemoryStore::default();
        let manager = builder(&fake, Arc::new(memory.another_handle())).build();
        let session = create(&manager, "task").await;
        let prompt = || input(&session, &texts("at last")).message_id("msg_own");
        fake.inject(Route::PromptAsync, fault.clone()).times(times);
        let error = soon(manager.prompt(prompt()).into_future()).await.unwrap_err();
        assert_ne!(error.delivery(), Delivery::Started, "{fault:?}: {error:?}");
        assert!(memory.open_turns().is_empty(), "{fault:?}");
        for _ in 0..others {
            soon(manager.prompt(input(&session, &texts("another"))).into_future()).await.unwrap();
        }
        soon(manager.shutdown()).await;
        let manager = builder(&fake, Arc::new(memory.another_handle())).build();
        for _ in 0..2 {
            let result = soon(manager.prompt(prompt()).into_future()).await.unwrap();
            assert_eq!(result.answer().as_deref(), Some("at last"), "{fault:?}: {}", result.completion);
        }
        let runs = fake.prompts_run(session.as_str());
        assert_eq!(runs.iter().filter(|run| *run == "msg_own").count(), 1, "{fault:?}: {runs:?}");
    }
}

#[tokio::test]
async fn what_a_caller_breaks_in_its_own_code_stays_with_that_prompt() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    let memory = MemoryStore::default();
    let manager = builder(&fake, Arc::new(memory.another_handle())).build();
    let session = create(&manager, "task").await;
    let broken = input(&session, &texts("one")).on_message(|_| panic!("a bug of the caller"));
    let mut running = manager.prompt(broken).start();
    let updates = running.updates().unwrap();
    let (error, _) = soon(async { tokio::join!(running, updates.collect::<Vec<_>>()) }).await;
    assert!(matches!(error, Err(PromptError::Panicked { .. })), "{error:?}");
    let next = soon(manager.prompt(input(&session, &texts("two"))).into_future()).await.unwrap();
    assert_eq!(next.answer().as_deref(), Some("two"));
    assert!(memory.open_turns().is_empty());
}

#[tokio::test]
async fn an_end_that_could_not_be_written_does_not_refuse_the_next_prompt() {
    for when_it_fails in [WhenStoreFails::FailTurn, WhenStoreFails::GoOn] {
        let fake = FakeOpenCode::start_with(quick()).await.unwrap();
        let memory = MemoryStore::default();
        let is_first = AtomicBool::new(true);
        let store = TappedStore::new(Arc::new(memory.another_handle()), move |call, _| {
            let fails = call == StoreCall::PutTurn(Phase::Finished) && is_first.swap(false, SeqCst);
            let error = StoreError::new("writing", StoreErrorKind::Unavailable);
            Box::pin(std::future::ready(if fails { Err(error) } else { Ok(()) }))
        });
        let manager = builder(&fake, Arc::new(store)).when_store_fails(when_it_fails).build();
        let session = create(&manager, "task").await;
        for words in ["one", "two"] {
            let result = soon(manager.prompt(input(&session, &texts(words))).into_future()).await.unwrap();
            assert_eq!(result.answer().as_deref(), Some(words), "{when_it_fails:?}");
        }
        assert!(memory.open_turns().is_empty(), "{when_it_fails:?}");
    }
}

#[tokio::test]
async fn a_turn_that_is_sent_away_before_it_goes_on_says_how_far_it_got() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    let memory = MemoryStore::default();
    let first = builder(&fake, Arc::new(memory.another_handle())).build();
    let session = create(&first, "task").await;
    let running = first.prompt(input(&session, &gated_text("gate", "one"))).start();
    soon(fake.wait_at("gate")).await;
    soon(first.shutdown()).await;
    drop(running);
    let second = builder(&fake, Arc::new(memory.another_handle())).build();
    let in_line = |running, waiting| {
        let second = second.clone();
        async move {
            while (second.statistics().running, second.statistics().waiting) != (running, waiting) {
                tokio::task::yield_now().await;
            }
        }
    };
    // It waits for the session to come to rest, and the turn that would bring it there waits behind it.
    let holder = second.prompt(input(&session, &texts("two"))).start();
    soon(in_line(1, 0)).await;
    let restored = soon(second.restore()).await.unwrap().remove(0);
    soon(in_line(1, 1)).await;
    soon(second.abort_all(&session)).await.unwrap();
    let error = soon(restored.running).await.unwrap_err();
    assert!(matches!(error, PromptError::Aborted { delivery: Delivery::Started, .. }), "{error:?}");
    soon(holder).await.unwrap_err();
    let next = soon(second.prompt(input(&session, &texts("three"))).into_future()).await.unwrap();
    assert_eq!(next.answer().as_deref(), Some("three"));
    assert!(memory.open_turns().is_empty());
}

#[tokio::test]
async fn a_turn_that_was_left_is_closed_although_a_prompt_failed_before_it_began() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    let memory = MemoryStore::default();
    let manager = builder(&fake, Arc::new(memory.another_handle())).build();
    let session = create(&manager, "task").await;
    let left = manager.prompt(input(&session, &gated_text("gate", "one"))).start();
    soon(fake.wait_at("gate")).await;
    drop(left);
    soon(async {
        while manager.statistics().turns.given_up < 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    fake.inject(Route::Status, Fault::Status(401));
    let error = soon(manager.prompt(input(&session, &texts("never"))).into_future()).await.unwrap_err();
    assert!(matches!(error, PromptError::Unauthorized { delivery: Delivery::NotSent, .. }), "{error:?}");
    fake.open_gate("gate");
    let next = soon(manager.prompt(input(&session, &texts("two"))).into_future()).await.unwrap();
    assert_eq!(next.answer().as_deref(), Some("two"));
    assert!(memory.open_turns().is_empty());
}

#[tokio::test]
async fn a_task_that_was_forgotten_can_have_another_session_at_once() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    let memory = MemoryStore::default();
    let manager = builder(&fake, Arc::new(memory.another_handle())).build();
    let first = create(&manager, "task").await;
    manager.forget(&first);
    let second = create(&manager, "task").await;
    soon(manager.delete(&second)).await.unwrap();
    let third = create(&manager, "task").await;
    soon(manager.shutdown()).await;
    let stored = memory.sessions().await.unwrap();
    assert_eq!(stored.iter().map(|meta| &meta.session_id).collect::<Vec<_>>(), [&third]);
}

#[tokio::test]
async fn a_task_whose_session_could_not_be_looked_for_is_free_for_others() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    let memory = MemoryStore::default();
    let [first, second] = [(); 2].map(|()| builder(&fake, Arc::new(memory.another_handle())).build());
    let request = || CreateTaskSession::new("project", "task", "/project", WORKTREE);
    fake.inject(Route::CreateSession, Fault::Status(400));
    soon(first.create_task_session(request())).await.unwrap_err();
    fake.inject(Route::ListSessions, Fault::Status(400));
    soon(first.create_task_session(request())).await.unwrap_err();
    soon(second.create_task_session(request())).await.unwrap();
}
