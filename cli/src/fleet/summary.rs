//! What came of all tasks: a table, or JSON.

use std::{fmt, path::PathBuf, process::ExitCode, time::Duration};

use opencode_conductor::{ClientStatistics, Completion, PromptExecutionResult, Usage, error_chain};
use opencode_conductor_cli::{
    ending,
    failure::Failure,
    refused, steps,
    style::{self, Ink, Style, shorten},
};
use serde_json::{Value, json};

use super::work::{End, Outcome, Task};

pub(crate) struct Summary {
    tasks: Vec<(Task, Option<Outcome>)>,
    elapsed: Duration,
    client: Option<ClientStatistics>,
    kept: Vec<PathBuf>,
}

/// An outcome in a few words.
pub(crate) fn verdict(outcome: &Outcome) -> (Ink, String) {
    match &outcome.end {
        End::Ran(result) => {
            let (mark, ink, words) = ending::mark(&result.completion);
            let words = match &result.completion {
                Completion::Failed(error) => error.message.clone(),
                Completion::TimedOut { limit, .. } => limit.to_string(),
                _ => words,
            };
            (ink, format!("{mark} {words}"))
        }
        End::Failed(error) => (Ink::Red, format!("✗ {}", error_chain(error))),
        End::NoSession(error) => (Ink::Red, format!("✗ {error}")),
        End::NotStarted => (Ink::Yellow, "■ not started".to_owned()),
        End::GivenUp => {
            let (mark, ink, words) = ending::mark(&Completion::GivenUp);
            (ink, format!("{mark} {words}"))
        }
    }
}

impl Outcome {
    fn result(&self) -> Option<&PromptExecutionResult> {
        match &self.end {
            End::Ran(result) => Some(result),
            End::Failed(_) | End::NoSession(_) | End::NotStarted | End::GivenUp => None,
        }
    }

    fn is_success(&self) -> bool {
        self.result().is_some_and(|result| result.completion.is_settled())
    }
}

impl Summary {
    pub(crate) fn new(
        tasks: Vec<Task>,
        outcomes: Vec<Option<Outcome>>,
        elapsed: Duration,
        client: Option<ClientStatistics>,
    ) -> Self {
        Self { tasks: tasks.into_iter().zip(outcomes).collect(), elapsed, client, kept: Vec::new() }
    }

    pub(crate) fn with_kept(self, kept: Vec<PathBuf>) -> Self {
        Self { kept, ..self }
    }

    pub(crate) fn verdict(&self) -> Result<ExitCode, Failure> {
        match self.tasks.len() - self.n_succeeded() {
            0 => Ok(ExitCode::SUCCESS),
            failed => Err(Failure::task(format!("{failed} of {} tasks did not succeed", self.tasks.len()))),
        }
    }

    pub(crate) fn json(&self) -> Value {
        let task = |(task, outcome): &(Task, Option<Outcome>)| {
            let mut report = match outcome.as_ref().map(|outcome| &outcome.end) {
                Some(End::Ran(result)) => json!(result),
                Some(End::Failed(error)) => json!({"completion": error}),
                Some(End::NoSession(error)) => {
                    json!({"completion": {"type": "noSession", "message": error}})
                }
                Some(End::NotStarted) => json!({"completion": {"type": "notStarted"}}),
                Some(End::GivenUp) => json!({"completion": Completion::GivenUp}),
                None => json!({}),
            };
            report["task"] = json!(task.id);
            report["prompt"] = json!(task.prompt);
            report["worktree"] = json!(task.worktree.path());
            report["kept"] = json!(self.kept.iter().any(|kept| kept == task.worktree.path()));
            if let Some(outcome) = outcome {
                report["changedFiles"] = json!(outcome.work.files.len());
                report["ignoredFiles"] = json!(outcome.work.ignored.len());
                report["newCommits"] = json!(outcome.work.commits.len());
                report["elapsedMs"] = json!(millis(outcome.elapsed));
            }
            report
        };
        json!({
            "tasks": self.tasks.iter().map(task).collect::<Vec<_>>(),
            "succeeded": self.n_succeeded(),
            "kept": self.kept,
            "usage": self.usage(),
            "elapsedMs": millis(self.elapsed),
            "client": self.client,
        })
    }

    fn n_succeeded(&self) -> usize {
        let outcomes = self.tasks.iter().filter_map(|(_, outcome)| outcome.as_ref());
        outcomes.filter(|outcome| outcome.is_success()).count()
    }

    fn usage(&self) -> Usage {
        let results = self.tasks.iter().filter_map(|(_, outcome)| outcome.as_ref()?.result());
        results.fold(Usage::default(), |mut sum, result| {
            sum += result.usage;
            sum
        })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let style = Style::of_stdout();
        let columns = Style::columns();
        let head = format!(
            "{:<8} {:>9} {:>6} {:>9} {:>9} {:>8}  outcome",
            "task", "time", "steps", "tokens", "cost", "changed"
        );
        writeln!(f, "{}", style.paint(Ink::Dim, &head))?;
        for (task, outcome) in &self.tasks {
            let Some(outcome) = outcome else {
                writeln!(f, "{:<8} {}", task.id, style.paint(Ink::Red, "✗ the program failed"))?;
                continue;
            };
            let usage = outcome.result().map(|result| result.usage).unwrap_or_default();
            let n_steps = outcome.result().map_or(0, steps::count);
            let (ink, words) = verdict(outcome);
            writeln!(
                f,
                "{:<8} {:>9} {n_steps:>6} {:>9} {:>9} {:>8}  {}",
                task.id,
                style::duration(outcome.elapsed),
                style::count(usage.tokens.total()),
                format!("${:.4}", usage.cost),
                style::plural(outcome.work.files.len(), "file"),
                style.paint(ink, &shorten(&words, columns.saturating_sub(57))),
            )?;
        }
        let usage = self.usage();
        writeln!(
            f,
            "{} of {} succeeded in {}, {} tokens, ${:.4}",
            self.n_succeeded(),
            self.tasks.len(),
            style::duration(self.elapsed),
            style::count(usage.tokens.total()),
            usage.cost
        )?;
        if let Some(client) = &self.client {
            let words = format!(
                "{} requests, {} read, {} of events, {} reconnects",
                client.requests,
                style::bytes(client.bytes_received),
                style::bytes(client.feed_bytes),
                client.reconnects
            );
            writeln!(f, "{}", style.paint(Ink::Dim, &words))?;
        }
        for (task, outcome) in &self.tasks {
            let result = outcome.as_ref().and_then(Outcome::result);
            if let Some(words) = result.and_then(|result| refused::summary(&result.refused)) {
                writeln!(f, "{} was refused {words}", task.id)?;
            }
        }
        for path in &self.kept {
            writeln!(f, "kept, since there is work in it: {}", path.display())?;
        }
        Ok(())
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
