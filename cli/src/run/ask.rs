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

/// The questions for the person at the terminal, one at a time.
pub(crate) struct Questions {
    asked: mpsc::UnboundedReceiver<Asked>,
    /// The one that is on the screen.
    shown: Option<Asked>,
    keyboard: Keyboard,
    screen: Screen,
}

/// Where questions are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Screen {
    Stdout,
    /// Standard output is for a program.
    Stderr,
}

/// What [`Questions::next`] waits for.
pub(crate) enum Step {
    /// There is a question to show.
    Ask(Asked),
    /// The one that was shown is answered, or needs no answer any more.
    Over,
}

impl Asker {
    pub(crate) fn new(screen: Screen) -> (Self, Questions) {
        let (sender, asked) = mpsc::unbounded_channel();
        (Self(sender), Questions { asked, shown: None, keyboard: Keyboard::new(), screen })
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

impl Questions {
    /// Waits for the next question, or for the end of the one that is shown.
    ///
    /// # Cancel safety
    /// No question and no answer is lost.
    pub(crate) async fn next(&mut self) -> Step {
        let Some(shown) = &mut self.shown else { return Step::Ask(next_open(&mut self.asked).await) };
        tokio::select! {
            biased;
            // It was answered elsewhere or withdrawn, or the turn has ended.
            () = shown.answer.closed() => self.withdraw(),
            line = self.keyboard.line() => {
                if line.is_none() {
                    self.print("\n");
                }
                if let Some(shown) = self.shown.take() {
                    drop(shown.answer.send(line));
                }
            }
        }
        Step::Over
    }

    pub(crate) fn is_any_shown(&self) -> bool {
        self.shown.is_some()
    }

    pub(crate) fn show(&mut self, asked: Asked) {
        let style = Style::of_stdout();
        self.keyboard.start_line();
        match self.screen {
            Screen::Stdout => {
                let question = style.paint(Ink::Bold, &asked.question);
                self.print(&format!("{} {question} ", style.paint(Ink::Yellow, "?")));
            }
            Screen::Stderr => self.print(&format!("? {} ", asked.question)),
        }
        self.shown = Some(asked);
    }

    /// Says of the question that is shown, if there is one, that it needs no answer.
    pub(crate) fn withdraw(&mut self) {
        if self.shown.take().is_some() {
            self.print("\n  no answer is needed any more\n");
        }
    }

    fn print(&self, text: &str) {
        // What cannot be shown cannot be answered either, and the keyboard says so.
        let _ = match self.screen {
            Screen::Stdout => output::print(text, Colours::of_stdout()),
            Screen::Stderr => output::print_aside(text),
        };
    }
}

/// The next question to which somebody still waits for the answer.
async fn next_open(asked: &mut mpsc::UnboundedReceiver<Asked>) -> Asked {
    loop {
        match asked.recv().await {
            Some(asked) if asked.answer.is_closed() => {}
            Some(asked) => return asked,
            // Nobody can ask any more.
            None => std::future::pending().await,
        }
    }
}

/// Lines from standard input, read when there is a question.
struct Keyboard {
    wanted: std::sync::mpsc::Sender<()>,
    lines: mpsc::UnboundedReceiver<Option<String>>,
    /// Whether a line is wanted that has not come. A question that needs no answer any more leaves it to the next one, which would
    /// otherwise have to be answered twice.
    is_wanted: bool,
}

impl Keyboard {
    fn new() -> Self {
        let (wanted, wishes) = std::sync::mpsc::channel();
        let (typed, lines) = mpsc::unbounded_channel();
        // A thread of its own: nothing can interrupt it, and it must not keep the program from ending.
        std::thread::spawn(move || {
            for () in wishes {
                let mut line = String::new();
                let read = stdin().read_line(&mut line);
                let line = read.ok().filter(|bytes| *bytes > 0).map(|_| line.trim().to_owned());
                if typed.send(line).is_err() {
                    return;
                }
            }
        });
        Self { wanted, lines, is_wanted: false }
    }

    /// Begins a line: what was typed before is no part of it.
    fn start_line(&mut self) {
        forget_typed_ahead();
        if self.lines.try_recv().is_ok() {
            self.is_wanted = false;
        }
        if !self.is_wanted {
            self.is_wanted = self.wanted.send(()).is_ok();
        }
    }

    /// What was typed; nothing if no one can answer.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    async fn line(&mut self) -> Option<String> {
        let line = self.lines.recv().await;
        self.is_wanted = false;
        line.flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_question_that_nobody_waits_for_any_more_is_not_shown() {
        let (asker, mut questions) = Asker::new(Screen::Stderr);
        assert_eq!(asker.ask("withdrawn".to_owned()).now_or_never(), None);
        let mut open = pin!(asker.ask("open".to_owned()));
        assert_eq!((&mut open).now_or_never(), None);
        let Step::Ask(shown) = questions.next().await else { panic!("a question is shown") };
        assert_eq!(shown.question, "open");
        shown.answer.send(Some("y".to_owned())).unwrap();
        assert_eq!(open.await.as_deref(), Some("y"));
    }

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
