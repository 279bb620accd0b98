//! Colours, widths and figures for a terminal.

use std::{io::IsTerminal, path::Path, time::Duration};

use rustix::termios::tcgetwinsize;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::output::{Colours, filtered};

/// Lines longer than this are hard to read, however wide the terminal.
const MAX_WIDTH: usize = 100;

/// How to print: with colours and redrawing on a terminal, plainly elsewhere.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Style {
    /// Whether what was printed can be redrawn.
    pub live: bool,
    colour: bool,
}

/// A colour or an emphasis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    missing_docs,
    clippy::exhaustive_enums,
    reason = "they say what they are, to programs of this package"
)]
pub enum Ink {
    Plain,
    Bold,
    Dim,
    Red,
    Green,
    Yellow,
    Blue,
    Magenta,
    Cyan,
}

impl Style {
    /// The style that suits standard output; `NO_COLOR` is honoured.
    pub fn of_stdout() -> Self {
        let live = std::io::stdout().is_terminal();
        let colour = live && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { live, colour }
    }

    /// `text` in a colour, if there are colours.
    pub fn paint(self, ink: Ink, text: &str) -> String {
        let code = match ink {
            Ink::Plain => "",
            Ink::Bold => "1",
            Ink::Dim => "2",
            Ink::Red => "31",
            Ink::Green => "32",
            Ink::Yellow => "33",
            Ink::Blue => "34",
            Ink::Magenta => "35",
            Ink::Cyan => "36",
        };
        if self.colour && !code.is_empty() && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// Whether [`Self::paint`] colours anything.
    pub fn has_colour(self) -> bool {
        self.colour
    }

    /// How many columns there are to print on.
    pub fn columns() -> usize {
        let columns = tcgetwinsize(std::io::stdout()).map_or(0, |size| usize::from(size.ws_col));
        if columns == 0 { 80 } else { columns.clamp(20, MAX_WIDTH) }
    }

    /// How many rows there are to redraw.
    pub fn rows() -> usize {
        let rows = tcgetwinsize(std::io::stdout()).map_or(0, |size| usize::from(size.ws_row));
        if rows == 0 { 24 } else { rows.max(5) }
    }
}

/// How many columns a text without colours takes.
pub fn width(text: &str) -> usize {
    text.width()
}

/// One line in which nothing is left that a terminal would act upon, and tabs are spaces.
pub fn harmless(text: &str) -> String {
    filtered(text, Colours::None).replace('\t', " ").replace('\n', "\u{fffd}")
}

/// The first line of a text, cut to at most `columns`.
pub fn shorten(text: &str, columns: usize) -> String {
    let line = harmless(text.trim().lines().next().unwrap_or_default());
    if line.width() <= columns {
        return line;
    }
    let mut used = 1;
    let fits = |c: &char| {
        used += c.width().unwrap_or(0);
        used <= columns
    };
    line.chars().take_while(fits).chain(['…']).collect()
}

/// A text in lines of at most `columns`, broken between words where that is possible.
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        let paragraph = harmless(paragraph.trim_end());
        let mut indent: String = paragraph.chars().take_while(|c| *c == ' ').collect();
        if paragraph.trim_start().starts_with(['-', '*', '•']) {
            indent.push_str("  ");
        }
        let mut line = String::new();
        for word in paragraph.split_inclusive(' ') {
            let fits = |line: &str| line.width() + word.trim_end().width() <= columns;
            if !fits(&line) && !line.trim().is_empty() {
                lines.push(line.trim_end().to_owned());
                line = if indent.len() < columns / 2 { indent.clone() } else { String::new() };
            }
            for c in word.chars() {
                if line.width() + c.width().unwrap_or(0) > columns && !line.is_empty() {
                    lines.push(std::mem::take(&mut line).trim_end().to_owned());
                }
                if !(line.is_empty() && c == ' ' && !lines.is_empty() && indent.is_empty()) {
                    line.push(c);
                }
            }
        }
        lines.push(line.trim_end().to_owned());
    }
    lines
}

/// A duration with as many digits as are of use.
pub fn duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..100_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        _ => format!("{} min {:02} s", ms / 60_000, ms / 1000 % 60),
    }
}

/// A count with its thousands apart.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}

/// A number of bytes.
pub fn bytes(n: u64) -> String {
    match n {
        0..1_000 => format!("{n} B"),
        1_000..1_000_000 => format!("{}.{} kB", n / 1_000, n % 1_000 / 100),
        _ => format!("{}.{} MB", n / 1_000_000, n % 1_000_000 / 100_000),
    }
}

/// `1 tool`, `2 tools`.
pub fn plural(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// A path as a shell would write it.
pub fn home_relative(path: &Path) -> String {
    let home = std::env::var_os("HOME").filter(|home| home.len() > 1);
    match home.and_then(|home| path.strip_prefix(home).ok().map(Path::to_owned)) {
        Some(below) => format!("~/{}", below.display()).trim_end_matches('/').to_owned(),
        None => path.display().to_string(),
    }
}
