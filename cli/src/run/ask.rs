//! Asks the person at the terminal.

use std::io::{IsTerminal, stdin};

use opencode_conductor::{Ask, Decision, Permission, PermissionPolicy, QuestionPolicy};
use opencode_conductor_cli::{
    output::{self, Colours, spelled_out},
    style::{Ink, Style},
};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

/// Hands questions over to the loop that owns the terminal.
#[derive(Clone)]
pub(crate) struct Asker(mpsc::UnboundedSender<Asked>);

/// A question for a person, and where the answer goes.
pub(crate) struct Asked {
    question: String,
    answer: oneshot::Sender<Option<String>>,
}

impl Asker {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Asked>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    pub(crate) fn permissions(&self) -> PermissionPolicy {
        let asker = self.clone();
        PermissionPolicy::ask(move |ask| {
            let asker = asker.clone();
            async move { asker.permission(&ask).await }
        })
    }

    pub(crate) fn questions(&self) -> QuestionPolicy {
        let asker = self.clone();
        QuestionPolicy::ask(move |ask| {
            let asker = asker.clone();
            async move { asker.question(&ask).await }
        })
    }

    async fn permission(&self, ask: &Ask) -> Decision {
        let Some(permission) = ask.permission() else { return ask.decline() };
        match self.ask(permission_question(permission)).await.as_deref() {
            Some("y" | "yes") => Decision::AllowOnce,
            Some("a" | "always") => Decision::AllowAlways,
            _ => Decision::Reject("The user does not want this.".to_owned()),
        }
    }

    async fn question(&self, ask: &Ask) -> Decision {
        let mut answers = Vec::new();
        for question in ask.questions() {
            let labels: Vec<&str> = question.options.iter().map(|option| option.label.as_str()).collect();
            let choice = if labels.is_empty() { String::new() } else { format!(" [{}]", labels.join(", ")) };
            match self.ask(spelled_out(&format!("{}{choice}", question.question))).await {
                Some(answer) if !answer.is_empty() => answers.push(vec![answer]),
                _ => return ask.decline(),
            }
        }
        Decision::Answer(answers)
    }

    /// What was typed; nothing if no one can answer.
    async fn ask(&self, question: String) -> Option<String> {
        let (answer, answered) = oneshot::channel();
        self.0.send(Asked { question, answer }).ok()?;
        answered.await.ok()?
    }
}

/// What a person has to know before allowing something: the command in full as it will run, what it touches, and what "always" would
/// allow from then on.
fn permission_question(permission: &Permission) -> String {
    let mut lines = vec![format!("Allow {}?", spelled_out(&permission.permission))];
    let mut list = |head: &str, texts: &[String]| {
        lines.extend((!head.is_empty()).then(|| format!("  {head}")));
        let shown = texts.iter().flat_map(|text| text.split('\n').map(spelled_out).collect::<Vec<_>>());
        lines.extend(shown.map(|line| format!("    {line}")));
    };
    if let Some(command) = permission.metadata.get("command").and_then(Value::as_str) {
        list("", &[command.to_owned()]);
    }
    list("for", &permission.patterns);
    if permission.always.is_empty() {
        list("[a]lways allows nothing beyond this", &[]);
    } else {
        list("[a]lways allows from now on, in all tasks here", &permission.always);
    }
    lines.push("  [y]es, [a]lways, [N]o".to_owned());
    lines.join("\n")
}

/// Throws away what was typed before there was a question: it answers another one, or none.
fn forget_typed_ahead() {
    if stdin().is_terminal() {
        // Where it cannot be done there is nothing to be thrown away.
        let _ = rustix::termios::tcflush(stdin(), rustix::termios::QueueSelector::IFlush);
    }
}

impl Asked {
    pub(crate) async fn answer_from_terminal(self) {
        let style = Style::of_stdout();
        let question = style.paint(Ink::Bold, &self.question);
        forget_typed_ahead();
        // If it cannot be shown, it cannot be answered either, and the read below ends.
        let _ =
            output::print(&format!("{} {question} ", style.paint(Ink::Yellow, "?")), Colours::of_stdout());
        let (typed, line) = oneshot::channel();
        // A thread of its own: nothing can interrupt it, and it must not keep the program from ending.
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = stdin().read_line(&mut line);
            let line = read.ok().filter(|bytes| *bytes > 0).map(|_| line.trim().to_owned());
            drop(typed.send(line));
        });
        let line = line.await.ok().flatten();
        if line.is_none() {
            let _ = output::print("\n", Colours::None);
        }
        drop(self.answer.send(line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_sees_in_full_what_would_run_and_what_always_allows() {
        let mut permission = Permission::new("bash", vec!["touch *".to_owned(), "rm *".to_owned()]);
        permission.always = vec!["touch *".to_owned(), "rm *".to_owned()];
        let command = "touch a &&\n\u{202e}rm -rf \x1b[2K~/";
        permission.metadata = serde_json::from_value(serde_json::json!({"command": command})).unwrap();
        let question = permission_question(&permission);
        let lines: Vec<&str> = question.lines().collect();
        assert_eq!(
            lines,
            [
                "Allow bash?",
                "    touch a &&",
                "    <U+202E>rm -rf <U+001B>[2K~/",
                "  for",
                "    touch *",
                "    rm *",
                "  [a]lways allows from now on, in all tasks here",
                "    touch *",
                "    rm *",
                "  [y]es, [a]lways, [N]o",
            ]
        );
    }
}
