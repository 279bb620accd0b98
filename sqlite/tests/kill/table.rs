//! What came of the kills, as a table.

use opencode_conductor::SessionConversationState;
use serde_json::Value;

/// What came of one kill.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are the columns of the table")]
pub(crate) struct Outcome {
    /// Every prompt has a result, or a typed error that says why not.
    pub(crate) is_finished: bool,
    /// How often the model was called for each prompt.
    pub(crate) runs: [usize; 2],
    /// Whether the model may have been called for nothing: the server died with the run.
    pub(crate) may_be_lost: bool,
    pub(crate) state_is_transcript: bool,
    /// The second prompt was never answered with the first one's answer.
    pub(crate) is_own_answer: bool,
    /// Something else that is wrong, in words.
    pub(crate) trouble: Option<String>,
}

impl Outcome {
    pub(crate) fn is_good(&self) -> bool {
        let runs = self.runs.iter().all(|runs| *runs == 1 || self.may_be_lost && *runs == 0);
        self.is_finished && runs && self.state_is_transcript && self.is_own_answer && self.trouble.is_none()
    }
}

/// One line: a point and what came of all kills there. Returns whether all is well.
pub(crate) fn row(point: &str, outcomes: &[Outcome]) -> bool {
    let n = outcomes.len();
    let count = |is: &dyn Fn(&Outcome) -> bool| outcomes.iter().filter(|outcome| is(outcome)).count();
    let runs: Vec<String> = (0..=2)
        .filter_map(|runs| {
            let times = count(&|outcome| outcome.runs[1] == runs);
            (times > 0).then(|| format!("{runs} ×{times}"))
        })
        .collect();
    let is_good = outcomes.iter().all(Outcome::is_good);
    println!(
        "| {point} | {}/{n} | {} | {}/{n} | {}/{n} |{}",
        count(&|outcome| outcome.is_finished),
        runs.join(", "),
        count(&|outcome| outcome.state_is_transcript),
        count(&|outcome| outcome.is_own_answer),
        if is_good { "" } else { " ✗" }
    );
    for bad in outcomes.iter().filter(|outcome| !outcome.is_good()) {
        println!("    {bad:?}");
    }
    is_good
}

pub(crate) fn heading(title: &str) {
    println!("\n{title}\n");
    println!("| killed | finished | model runs of the prompt | state = transcript | no old answer |");
    println!("|---|---|---|---|---|");
}

/// Whether a state that a child wrote equals that of a transcript.
pub(crate) fn is_same(written: &Value, transcript: &SessionConversationState) -> bool {
    let read: SessionConversationState = serde_json::from_value(written.clone()).unwrap();
    read == *transcript
}
