//! Random programs for the model server: what a user, a model and an unlucky server might do.

use proptest::prelude::*;

/// A session's life.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) turns: Vec<Turn>,
}

#[derive(Debug, Clone)]
pub(crate) struct Turn {
    pub(crate) prompt: Prompt,
    pub(crate) steps: Vec<Step>,
    pub(crate) end: End,
    pub(crate) after: After,
}

#[derive(Debug, Clone)]
pub(crate) enum Prompt {
    Text,
    TextAndFile,
    Synthetic,
    Blank,
}

#[derive(Debug, Clone)]
pub(crate) struct Step {
    /// Texts of attempts that the provider broke off.
    pub(crate) failed: Vec<String>,
    pub(crate) thinking: Option<String>,
    pub(crate) text: Option<String>,
    pub(crate) tools: Vec<Tool>,
}

#[derive(Debug, Clone)]
pub(crate) enum Tool {
    Plain(ToolEnd),
    Task {
        child: Session,
        end: ToolEnd,
        forgets_child: bool,
    },
    Background(Session),
    /// Resumes the first child that the session had, if any.
    Resume,
    /// A call of a subagent that turns out to be of a tool which the model does not have.
    Misnamed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolEnd {
    Completed,
    Failed,
    /// It never ends: the server left it running.
    Stuck,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Idle,
    /// An error, announced by two idles of which the first comes too early.
    Error,
    Abort,
    Compaction,
    /// The server dies in the last step.
    Crash,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum After {
    Nothing,
    RemoveLastMessage,
    RemovePart,
    Resubmit,
    PruneTools,
    Orphan,
}

fn texts() -> impl Strategy<Value = String> {
    const TEXTS: &[&str] =
        &["", " \n", "a", "b c", "é", "one two three", "\nx\n\n  y\n", "a longer text, in words "];
    prop::sample::select(TEXTS).prop_map(str::to_owned)
}

fn tool_end() -> impl Strategy<Value = ToolEnd> {
    prop_oneof![6 => Just(ToolEnd::Completed), 2 => Just(ToolEnd::Failed), 1 => Just(ToolEnd::Stuck)]
}

fn step(tool: impl Strategy<Value = Tool>) -> impl Strategy<Value = Step> {
    (
        prop_oneof![4 => Just(Vec::new()), 1 => prop::collection::vec(texts(), 1..3)],
        prop::option::of(texts()),
        prop::option::of(texts()),
        prop::collection::vec(tool, 0..3),
    )
        .prop_map(|(failed, thinking, text, tools)| Step { failed, thinking, text, tools })
}

fn turn(step: impl Strategy<Value = Step>) -> impl Strategy<Value = Turn> {
    let prompt = prop_oneof![
        4 => Just(Prompt::Text),
        1 => Just(Prompt::TextAndFile),
        1 => Just(Prompt::Synthetic),
        1 => Just(Prompt::Blank)
    ];
    let end = prop_oneof![
        6 => Just(End::Idle),
        1 => Just(End::Error),
        1 => Just(End::Abort),
        1 => Just(End::Compaction),
        1 => Just(End::Crash)
    ];
    let after = prop_oneof![
        6 => Just(After::Nothing),
        1 => Just(After::RemoveLastMessage),
        1 => Just(After::RemovePart),
        1 => Just(After::Resubmit),
        1 => Just(After::PruneTools),
        1 => Just(After::Orphan)
    ];
    (prompt, prop::collection::vec(step, 0..3), end, after).prop_map(|(prompt, steps, end, after)| Turn {
        prompt,
        steps,
        end,
        after,
    })
}

/// Sessions with subagents up to three levels deep.
pub(crate) fn session() -> impl Strategy<Value = Session> {
    let leaf = || {
        let tool = prop_oneof![5 => tool_end().prop_map(Tool::Plain), 1 => Just(Tool::Misnamed)];
        prop::collection::vec(turn(step(tool)), 1..2).prop_map(|turns| Session { turns })
    };
    leaf().prop_recursive(2, 12, 2, |child| {
        let task = (child.clone(), tool_end(), any::<bool>())
            .prop_map(|(child, end, forgets_child)| Tool::Task { child, end, forgets_child });
        let tool = prop_oneof![
            3 => tool_end().prop_map(Tool::Plain),
            3 => task,
            1 => child.prop_map(Tool::Background),
            1 => Just(Tool::Resume),
            1 => Just(Tool::Misnamed),
        ];
        prop::collection::vec(turn(step(tool)), 1..3).prop_map(|turns| Session { turns })
    })
}
