//! Asks the person at the terminal.

use std::io::{Write, stdin, stdout};

use opencode_conductor::{Ask, Decision, PermissionPolicy, QuestionPolicy};
use opencode_conductor_examples::style::{Ink, Style, harmless};
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
        let patterns = permission.patterns.join(" ");
        let question = format!("Allow {} {patterns}? [y]es, [a]lways, [N]o", permission.permission);
        match self.ask(question).await.as_deref() {
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
            match self.ask(format!("{}{choice}", question.question)).await {
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

impl Asked {
    #[expect(clippy::print_stdout, reason = "a person is asked")]
    pub(crate) async fn answer_from_terminal(self) {
        let style = Style::of_stdout();
        print!("{} {} ", style.paint(Ink::Yellow, "?"), style.paint(Ink::Bold, &harmless(&self.question)));
        // If it cannot be shown, it cannot be answered either, and the read below ends.
        let _ = stdout().flush();
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
            println!();
        }
        drop(self.answer.send(line));
    }
}
