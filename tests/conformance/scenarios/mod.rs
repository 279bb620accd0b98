//! The scenarios, by what they are about.

mod aborts;
mod compactions;
mod failures;
mod http;
mod humans;
mod life;
mod permissions;
mod reposts;
mod streams;
mod subagents;
mod turns;

use std::pin::Pin;

use crate::{stage::Stage, target::Setup};

/// One scenario, written once for both servers.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) play: Play,
}

type Play = for<'s, 't> fn(&'s mut Stage<'t>) -> Pin<Box<dyn Future<Output = ()> + 's>>;

macro_rules! scenarios {
    ($($module:ident: $($name:ident)+;)+) => {
        vec![$($(Scenario { name: stringify!($name), play: |stage| Box::pin($module::$name(stage)) }),+),+]
    };
}

/// All scenarios, grouped by the server they need.
pub(crate) fn all() -> Vec<(Setup, Vec<Scenario>)> {
    let plain = scenarios! {
        http: prompt_answers session_routes message_pages unknown_routes request_routes changed_files;
        turns: text_turn reasoning_turn empty_answer length_finish odd_finish content_filter dropped_stream
            tool_turn parallel_tools failing_tool unknown_tool invalid_arguments stop_with_tools
            follow_up no_reply sync_message default_title busy_during_text busy_during_tool;
        failures: provider_error run_that_dies unknown_model unknown_model_sticks unknown_agent retry_then_answer
            retry_after_partial_text retries_exhausted lost_prompt_then_kick error_loses_queued_prompt;
        reposts: repost_while_running repost_after_finish repost_without_part_ids repost_after_error
            repost_of_an_older_message foreign_message_id;
        aborts: abort_while_streaming abort_running_bash abort_before_stream abort_in_retry abort_idle
            abort_unknown abort_loses_queued_prompt abort_with_permission_pending abort_with_question_pending
            prompt_between_abort_idles;
        compactions: compaction_by_usage compaction_after_tools compaction_by_overflow
            compaction_by_overflow_replays compaction_fails summarize_route;
        subagents: subagent parallel_subagents failing_subagent unknown_subagent background_without_flag
            nested_subagents too_deep abort_parent abort_child subagent_asks resumed_subagent
            task_in_a_strangers_session subagent_inherits_rules;
        humans: permission_once permission_always permission_reject permission_reject_with_message
            one_reject_settles_all old_reply_route denied_by_rule session_allows session_denies
            loop_rejected loop_rejected_with_message loop_allowed question_answered question_dismissed question_denied;
        permissions: what_tools_ask_for asks_without_rules rules_of_paths denied_edits one_tool_allowed
            one_denied_command_denies_all plan_does_not_edit explorer_does_not_edit asks_for_a_task denied_task;
        streams: events_of_one_directory dispose_ends_stream config_change_disposes global_events heartbeat
            directory_spellings;
        life: delete_session delete_while_busy restart_while_streaming restart_while_tool_runs
            restart_with_permission_pending fork_session;
    };
    let secret = scenarios! {
        http: authentication;
    };
    let background = scenarios! {
        subagents: background_subagent abort_with_background_subagent;
    };
    let priced = scenarios! {
        turns: priced_turn;
    };
    vec![
        (Setup::default(), plain),
        (Setup { password: Some("secret"), ..Setup::default() }, secret),
        (Setup { background_subagents: true, ..Setup::default() }, background),
        (Setup { priced: true, ..Setup::default() }, priced),
    ]
}
