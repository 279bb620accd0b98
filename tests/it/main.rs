//! Behaviour, one module each, in one binary so that it links once.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a broken test rig should stop the test")]
#![expect(clippy::print_stderr, reason = "the person who runs the tests should know what was skipped")]

#[cfg(all(unix, feature = "claude", feature = "test-util"))]
mod claude;
mod claude_laws;
mod claude_parity;
#[cfg(feature = "client")]
mod client_calls;
#[cfg(feature = "client")]
mod client_secrets;
#[cfg(feature = "client")]
mod feed_live;

mod core_observe;
mod core_transcript;
mod core_wire;
#[cfg(feature = "test-util")]
mod fake_errors;
#[cfg(feature = "test-util")]
mod fake_faults;
#[cfg(feature = "test-util")]
mod fake_flavours;
#[cfg(feature = "test-util")]
mod fake_load;
#[cfg(feature = "test-util")]
mod fake_scripts;
mod fixtures_parity;
mod fuzz_corpus;
mod json_page;
mod laws_arbitrary;
mod laws_fold;
mod laws_json;
mod laws_model;
mod laws_program;
#[cfg(feature = "test-util")]
mod manager_abort;
#[cfg(feature = "test-util")]
mod manager_chaos;
#[cfg(feature = "test-util")]
mod manager_completion;
#[cfg(feature = "test-util")]
mod manager_cost;
#[cfg(feature = "test-util")]
mod manager_deadlines;
#[cfg(feature = "test-util")]
mod manager_delivery;
#[cfg(feature = "test-util")]
mod manager_desk;
#[cfg(feature = "test-util")]
mod manager_errors;
#[cfg(feature = "test-util")]
mod manager_line;
#[cfg(feature = "test-util")]
mod manager_logs;
#[cfg(feature = "client")]
mod manager_mock;
#[cfg(feature = "test-util")]
mod manager_permissions;
#[cfg(feature = "test-util")]
mod manager_races;
#[cfg(feature = "test-util")]
mod manager_results;
#[cfg(feature = "test-util")]
mod manager_servers;
#[cfg(feature = "test-util")]
mod manager_sessions;
#[cfg(feature = "test-util")]
mod manager_stats;
#[cfg(feature = "test-util")]
mod manager_store;
#[cfg(feature = "test-util")]
#[path = "../support/model.rs"]
mod model;
#[cfg(feature = "test-util")]
mod neutral;
mod plain_client;
#[cfg(feature = "test-util")]
#[path = "../support/proxy.rs"]
mod proxy;
#[cfg(feature = "test-util")]
#[path = "../support/real.rs"]
mod real;
#[cfg(feature = "test-util")]
mod real_diff;
#[cfg(feature = "test-util")]
mod real_hostile;
#[cfg(feature = "test-util")]
mod real_manager;
#[cfg(feature = "test-util")]
mod real_releases;
#[cfg(feature = "test-util")]
mod real_servers;
#[cfg(feature = "test-util")]
mod server_detached;
#[cfg(feature = "client")]
mod server_fake;
#[cfg(feature = "client")]
mod server_pool;
#[cfg(feature = "client")]
mod server_real;
mod session_data;
mod stream_view;
mod supply_chain;
#[cfg(feature = "client")]
mod support;
