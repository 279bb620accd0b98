//! Draws what a terminal shows as an SVG that plays: `terminal_svg TITLE MILLISECONDS FRAME... > picture.svg`.
//!
//! A frame is a file as `tmux capture-pane -e -p` prints it. `docs/make-pictures` takes the frames and calls this.

#![expect(clippy::print_stdout, reason = "this is what the program is for")]

use std::{fmt, fs, path::PathBuf, process::ExitCode};

use clap::Parser;
use opencode_conductor_cli::{
    command_line,
    failure::{self, Failure},
};
use unicode_width::UnicodeWidthStr;

const COLUMN: f64 = 8.4;
const ROW: f64 = 19.0;
const PADDING: f64 = 16.0;
const BAR: f64 = 36.0;
/// How long the last frame stays, in frames.
const LAST_FRAME: usize = 6;

/// Draws what a terminal showed, frame after frame, and prints the picture
#[derive(Debug, Parser)]
#[command(name = "terminal_svg")]
struct Arguments {
    /// What the window is called
    title: String,
    /// How long each frame is shown
    milliseconds: usize,
    /// What the terminal showed, with its escape sequences, as `tmux capture-pane -e -p` prints it
    #[arg(value_name = "FRAME")]
    frames: Vec<PathBuf>,
}

fn main() -> ExitCode {
    match command_line::parse("terminal_svg") {
        Ok(arguments) => failure::exit("terminal_svg", run(&arguments)),
        Err(status) => status,
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { title, milliseconds, frames: files } = arguments;
    let milliseconds = *milliseconds;
    let mut frames = Vec::new();
    for file in files {
        let text = fs::read_to_string(file).map_err(|error| Failure::because(file.display(), &error))?;
        let mut look = Look::default();
        frames.push(text.lines().map(|line| look.runs(line)).collect());
    }
    println!("{}", Picture { title, milliseconds, frames });
    Ok(ExitCode::SUCCESS)
}

/// Characters that look alike.
#[derive(Debug, Clone, PartialEq)]
struct Run {
    class: String,
    text: String,
}

/// What the codes so far have set; a terminal carries it on to the next line.
#[derive(Debug, Clone, Copy, Default)]
struct Look {
    bold: bool,
    dim: bool,
    colour: u32,
}

impl Look {
    /// Only the codes that `conductor` uses are understood.
    fn apply(&mut self, codes: &str) {
        for code in codes.split(';') {
            match code.parse().unwrap_or(0) {
                0 => *self = Self::default(),
                1 => self.bold = true,
                2 => self.dim = true,
                22 => (self.bold, self.dim) = (false, false),
                39 => self.colour = 0,
                code @ 31..=37 => self.colour = code - 30,
                _ => {}
            }
        }
    }

    fn class(self) -> String {
        let colour = format!("c{}", self.colour);
        let names = [(self.bold, "b"), (self.dim, "d"), (self.colour > 0, &colour)];
        names.into_iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name).collect::<Vec<_>>().join(" ")
    }

    /// Cuts a line into runs.
    fn runs(&mut self, line: &str) -> Vec<Run> {
        let mut runs = Vec::new();
        let (first, rest) = line.split_once("\x1b[").unwrap_or((line, ""));
        let mut push = |look: &Self, text: &str| {
            if !text.is_empty() {
                runs.push(Run { class: look.class(), text: text.to_owned() });
            }
        };
        push(self, first);
        for piece in rest.split("\x1b[") {
            if let Some((codes, text)) = piece.split_once('m') {
                self.apply(codes);
                push(self, text);
            }
        }
        runs
    }
}

struct Picture<'a> {
    title: &'a str,
    milliseconds: usize,
    frames: Vec<Vec<Vec<Run>>>,
}

impl fmt::Display for Picture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_blank = |line: &Vec<Run>| line.iter().all(|run| run.text.trim().is_empty());
        let rows_of =
            |frame: &Vec<Vec<Run>>| frame.iter().rposition(|line| !is_blank(line)).map_or(0, |last| last + 1);
        let n_rows = self.frames.iter().map(rows_of).max().unwrap_or(0);
        let columns_of =
            |line: &Vec<Run>| line.iter().map(|run| run.text.as_str()).collect::<String>().trim_end().width();
        let n_columns = self.frames.iter().flatten().map(columns_of).max().unwrap_or(0);
        let (width, height) =
            (length(n_columns, COLUMN) + 2.0 * PADDING, BAR + length(n_rows, ROW) + PADDING);
        writeln!(
            f,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" role="img" aria-label="{}">"#,
            escaped(self.title)
        )?;
        writeln!(f, "<style>{STYLE}")?;
        self.keyframes(f)?;
        writeln!(f, "</style>")?;
        writeln!(f, r##"<rect width="100%" height="100%" rx="10" fill="#16181d"/>"##)?;
        for (x, colour) in [(20, "#ff5f57"), (40, "#febc2e"), (60, "#28c840")] {
            writeln!(f, r#"<circle cx="{x}" cy="18" r="6" fill="{colour}"/>"#)?;
        }
        writeln!(f, r#"<text x="84" y="23" class="d">{}</text>"#, escaped(self.title))?;
        for (index, frame) in self.frames.iter().enumerate() {
            writeln!(f, r#"<g class="f f{index}">"#)?;
            for (row, line) in frame.iter().take(n_rows).enumerate().filter(|(_, line)| !is_blank(line)) {
                draw_line(f, line, BAR + length(row, ROW) + 14.0)?;
            }
            writeln!(f, "</g>")?;
        }
        write!(f, "</svg>")
    }
}

impl Picture<'_> {
    /// Each frame is seen in its turn; a viewer that plays no animations shows the last.
    fn keyframes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n_frames = self.frames.len();
        if n_frames < 2 {
            return writeln!(f, ".f0{{visibility:visible}}");
        }
        let n_slots = n_frames - 1 + LAST_FRAME;
        let percent = |slot: usize| 100.0 * length(slot, 1.0) / length(n_slots, 1.0);
        writeln!(
            f,
            ".f{{animation-duration:{}ms;animation-iteration-count:infinite;animation-timing-function:step-end}}",
            n_slots * self.milliseconds
        )?;
        for index in 0..n_frames {
            let is_last = index == n_frames - 1;
            let end = if is_last { 100.0 } else { percent(index + 1) };
            writeln!(
                f,
                "@keyframes k{index}{{0%{{visibility:{}}}{:.2}%{{visibility:visible}}{end:.2}%{{visibility:{}}}}}.f{index}{{animation-name:k{index}{}}}",
                if index == 0 { "visible" } else { "hidden" },
                percent(index),
                if is_last { "visible" } else { "hidden" },
                if is_last { ";visibility:visible" } else { "" },
            )?;
        }
        Ok(())
    }
}

/// Every run at its column, so that a font of another width does not shift what follows.
fn draw_line(f: &mut fmt::Formatter<'_>, line: &[Run], y: f64) -> fmt::Result {
    let mut column = 0;
    for run in line {
        let n_columns = run.text.width();
        if !run.text.trim().is_empty() {
            let class =
                if run.class.is_empty() { String::new() } else { format!(r#" class="{}""#, run.class) };
            let x = PADDING + length(column, COLUMN);
            let text_length = length(run.text.trim_end().width(), COLUMN);
            writeln!(
                f,
                r#"<text x="{x:.1}" y="{y:.1}" textLength="{text_length:.1}" xml:space="preserve"{class}>{}</text>"#,
                escaped(run.text.trim_end())
            )?;
        }
        column += n_columns;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a terminal has not that many columns")]
fn length(count: usize, unit: f64) -> f64 {
    count as f64 * unit
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const STYLE: &str = "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d7dae0}\
.f{visibility:hidden}.b{font-weight:700}.d{fill:#7f8694}.c1{fill:#f2777a}.c2{fill:#7ec97e}.c3{fill:#e5c07b}\
.c4{fill:#6fa8dc}.c5{fill:#c792ea}.c6{fill:#5fc9d1}";
