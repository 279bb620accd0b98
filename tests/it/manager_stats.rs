//! What a manager counts, as a snapshot and as metrics.

use opencode_conductor::{
    ClientStatistics, ManagerStatistics, PermissionPolicy, PromptInput,
    test_util::{Fault, Route, Script, Step},
};

use super::support::{
    soon,
    stage::{Stage, asking_tool, gated_text, quick, texts, waits},
};

/// Turns with different ends, one that waits while another runs, a permission, a lost stream and a kick.
async fn play() -> (ManagerStatistics, ManagerStatistics, ClientStatistics) {
    let settings = |manager: opencode_conductor::ManagerBuilder| {
        manager.permissions(PermissionPolicy::AllowOnce).wait(waits()).unwrap()
    };
    let stage = Stage::with(quick(), settings).await;
    stage.ask(&Script::new([Step::tool(asking_tool("touch x")), Step::text("done")])).await.unwrap();
    stage.fake.inject(Route::PromptAsync, Fault::Status(400));
    stage.ask(&texts("not taken")).await.unwrap_err();
    stage.send(PromptInput::new(stage.session.clone(), "")).await.unwrap_err();
    let first = stage.start(&gated_text("gate", "one two"));
    soon(stage.fake.wait_at("gate")).await;
    let second = stage.start(&texts("three"));
    soon(async {
        while stage.manager.statistics().waiting == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let during = stage.manager.statistics();
    stage.fake.cut_streams();
    stage.fake.open_gate("gate");
    soon(first).await.unwrap();
    soon(second).await.unwrap();
    stage.fake.inject(Route::PromptAsync, Fault::LosePrompt);
    stage.ask(&texts("started late")).await.unwrap();
    (during, stage.manager.statistics(), stage.manager.client().unwrap().statistics())
}

#[tokio::test]
async fn everything_that_happened_is_counted() {
    let (during, after, client) = play().await;
    assert_eq!((during.running, during.waiting), (1, 1));
    assert_eq!((after.running, after.waiting), (0, 0));
    let turns = after.turns;
    assert_eq!((turns.settled, turns.not_started, turns.error), (4, 1, 1), "{turns:?}");
    assert_eq!(turns.failed + turns.aborted + turns.timed_out + turns.given_up, 0, "{turns:?}");
    assert_eq!((turns.permissions, turns.questions), (1, 0), "{turns:?}");
    assert!(turns.kicks >= 1 && turns.submissions >= 5 + turns.kicks, "{turns:?}");
    assert!(turns.polls >= turns.settled && turns.millis > 0, "{turns:?}");
    assert!(client.reconnects >= 1 && client.resyncs >= 1, "{client:?}");
    assert!(client.feed_bytes > 0 && client.bytes_received > 0, "{client:?}");
}

#[cfg(feature = "metrics")]
mod metrics_too {
    use std::{
        collections::BTreeMap,
        sync::{Arc, Mutex},
    };

    use metrics::{
        Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
        SharedString, Unit,
    };

    /// The sum of each metric.
    #[derive(Clone, Default)]
    struct Sums(Arc<Mutex<BTreeMap<String, f64>>>);

    struct Sum(Sums, String);

    impl Sum {
        fn add(&self, value: f64) {
            *self.0.0.lock().unwrap().entry(self.1.clone()).or_default() += value;
        }
    }

    impl CounterFn for Sum {
        #[expect(clippy::cast_precision_loss, reason = "the tests count to a million at most")]
        fn increment(&self, value: u64) {
            self.add(value as f64);
        }

        fn absolute(&self, _: u64) {
            panic!("counters only grow");
        }
    }

    impl GaugeFn for Sum {
        fn increment(&self, value: f64) {
            self.add(value);
        }

        fn decrement(&self, value: f64) {
            self.add(-value);
        }

        fn set(&self, _: f64) {
            panic!("gauges go up and down");
        }
    }

    impl HistogramFn for Sum {
        fn record(&self, _: f64) {
            self.add(1.0);
        }
    }

    impl Sums {
        fn of(&self, key: &Key) -> Arc<Sum> {
            let labels = key.labels().map(|label| format!("{{{}={}}}", label.key(), label.value()));
            Arc::new(Sum(self.clone(), format!("{}{}", key.name(), labels.collect::<String>())))
        }
    }

    impl Recorder for Sums {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.of(key))
        }

        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.of(key))
        }

        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::from_arc(self.of(key))
        }
    }

    /// The runtime of the test has one thread, so that its recorder hears everything.
    #[tokio::test]
    #[expect(clippy::cast_precision_loss, reason = "the tests count to a million at most")]
    async fn the_metrics_say_what_the_snapshot_says() {
        let sums = Sums::default();
        let guard = metrics::set_default_local_recorder(&sums);
        let (_, stats, client) = super::play().await;
        drop(guard);
        let sums = sums.0.lock().unwrap();
        let turns = stats.turns;
        for (name, expected) in [
            ("opencode_turns_total{outcome=settled}", turns.settled),
            ("opencode_turns_total{outcome=not_started}", turns.not_started),
            ("opencode_turns_total{outcome=error}", turns.error),
            ("opencode_turn_seconds", turns.settled + turns.not_started),
            ("opencode_polls_total", turns.polls),
            ("opencode_submissions_total", turns.submissions),
            ("opencode_kicks_total", turns.kicks),
            ("opencode_permissions_total", turns.permissions),
            ("opencode_prompts_running", 0),
            ("opencode_prompts_waiting", 0),
            ("opencode_requests_total", client.requests),
            ("opencode_reconnects_total", client.reconnects),
            ("opencode_resyncs_total", client.resyncs),
            ("opencode_bytes_received_total", client.bytes_received),
            ("opencode_feed_bytes_total", client.feed_bytes),
        ] {
            let found = sums.get(name).unwrap_or_else(|| panic!("no {name} in {sums:?}"));
            assert!((found - expected as f64).abs() < 0.5, "{name} is {found}, expected {expected}");
        }
    }
}
