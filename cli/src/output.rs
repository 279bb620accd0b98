//! The one place where programs print.
//!
//! Models, tools and servers write what they like. Printed as it is, that could move the cursor over a question, set the window's title,
//! or turn a command round. So what is printed passes through here: of escape sequences only the colours of
//! [`Style::paint`](crate::style::Style::paint) are left, and those only where the program uses colours.

use std::{
    fmt::Write as _,
    io::{self, Write, stderr, stdout},
};

use unicode_width::UnicodeWidthChar;

use crate::style::Style;

/// Whether a program's own colours are among what it prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Colours {
    /// The text may hold this program's colours, which are kept.
    Kept,
    /// All escape sequences in the text are a model's or a file's, and are taken out.
    None,
}

impl Colours {
    /// As it suits standard output.
    pub fn of_stdout() -> Self {
        if Style::of_stdout().has_colour() { Self::Kept } else { Self::None }
    }
}

/// Prints text on standard output.
///
/// # Errors
/// If it cannot be written.
pub fn print(text: &str, colours: Colours) -> io::Result<()> {
    let mut stdout = stdout().lock();
    stdout.write_all(filtered(text, colours).as_bytes()).and_then(|()| stdout.flush())
}

/// Lines at the bottom of the terminal that are drawn over and over. Dropping it leaves them, and shows the cursor again.
#[derive(Debug, Default)]
pub struct LiveLines {
    n_lines: usize,
}

impl LiveLines {
    /// Prints lines for good, then lines that the next call will draw over.
    pub fn redraw(&mut self, scrolled: &[String], live: &[String]) {
        let mut frame = String::from("\x1b[?25l\r");
        if self.n_lines > 0 {
            // Writing to a string cannot fail.
            let _ = write!(frame, "\x1b[{}A", self.n_lines);
        }
        frame.push_str("\x1b[J");
        let colours = Colours::of_stdout();
        for line in scrolled {
            frame.push_str(&filtered(line, colours).replace('\n', "\u{fffd}"));
            frame.push('\n');
        }
        if live.is_empty() {
            frame.push_str(SHOW_CURSOR);
        } else {
            // One that went on below would not be drawn over. How wide some characters are only the terminal knows, so that it
            // must not wrap either.
            frame.push_str("\x1b[?7l");
            for line in live {
                frame.push_str(&cut(line, Style::columns(), colours));
                frame.push('\n');
            }
            frame.push_str("\x1b[?7h");
        }
        self.n_lines = live.len();
        write_frame(&frame);
    }
}

impl Drop for LiveLines {
    fn drop(&mut self) {
        if self.n_lines > 0 {
            write_frame(SHOW_CURSOR);
        }
    }
}

const SHOW_CURSOR: &str = "\x1b[?25h";

fn write_frame(frame: &str) {
    let mut stdout = stdout().lock();
    // A reader that has seen enough is no reason to stop what runs.
    let _ = stdout.write_all(frame.as_bytes()).and_then(|()| stdout.flush());
}

/// Prints a line on standard error.
pub fn complain(line: &str) {
    // Without standard error there is no reader.
    let _ = writeln!(stderr().lock(), "{}", filtered(line, Colours::None).replace('\n', " "));
}

/// Prints text on standard error, without colours.
///
/// # Errors
/// If it cannot be written.
pub fn print_aside(text: &str) -> io::Result<()> {
    stderr().lock().write_all(filtered(text, Colours::None).as_bytes())
}

/// Prints JSON on standard output, with what is not to be seen in it written as escapes.
///
/// # Errors
/// If it cannot be written.
pub fn print_json(json: &str) -> io::Result<()> {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if c != '\n' && is_unseen(c) {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                // Writing to a string cannot fail.
                let _ = write!(text, "\\u{unit:04x}");
            }
        } else {
            text.push(c);
        }
    }
    let mut stdout = stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())
}

/// Text in which nothing is left that a terminal acts upon, or that turns other text round; each such character is replaced. Line
/// breaks and tabs stay.
pub fn filtered(text: &str, colours: Colours) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = match own_colour(rest) {
            Some(length) if colours == Colours::Kept => {
                shown.push_str(&rest[..length]);
                length
            }
            _ => {
                let stays = matches!(c, '\n' | '\t') || !is_unseen(c) || is_joiner(c);
                shown.push(if stays { c } else { '\u{fffd}' });
                c.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    shown
}

/// Text on which a person decides: in full, with everything that does not show, or shows elsewhere, spelled out.
pub fn spelled_out(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c != '\n' && is_unseen(c) {
            // Writing to a string cannot fail.
            let _ = write!(shown, "<U+{:04X}>", u32::from(c));
        } else {
            shown.push(c);
        }
    }
    shown
}

/// A line as [`filtered`], cut to at most `columns`; its colours take none of them, and end with it.
fn cut(line: &str, columns: usize, colours: Colours) -> String {
    let line = filtered(line, colours).replace('\t', " ").replace('\n', "\u{fffd}");
    let (mut used, mut has_colour, mut rest) = (0, false, line.as_str());
    // Where the last column begins, in which a longer line has a mark.
    let mut last = None;
    while let Some(c) = rest.chars().next() {
        let at = line.len() - rest.len();
        if let Some(length) = own_colour(rest) {
            has_colour = true;
            rest = &rest[length..];
            continue;
        }
        let width = c.width().unwrap_or(0);
        if used + width >= columns {
            last.get_or_insert(at);
        }
        used += width;
        if used > columns {
            let kept = &line[..last.unwrap_or(at)];
            return format!("{kept}…{}", if has_colour { "\x1b[0m" } else { "" });
        }
        rest = &rest[c.len_utf8()..];
    }
    line
}

/// How long the colour is that a text begins with, if it is one that programs here use.
fn own_colour(text: &str) -> Option<usize> {
    let (code, _) = text.strip_prefix("\x1b[")?.split_once('m')?;
    matches!(code, "0" | "1" | "2" | "31" | "32" | "33" | "34" | "35" | "36").then(|| code.len() + 3)
}

/// Control characters, direction marks, and what takes no room.
fn is_unseen(c: char) -> bool {
    c.is_control()
        || is_joiner(c)
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// What writing systems and pictures need between letters: harmless in a text, but not in a command.
fn is_joiner(c: char) -> bool {
    matches!(c, '\u{200c}' | '\u{200d}' | '\u{fe00}'..='\u{fe0f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_acts_upon_is_printed() {
        let rows = [
            ("plain\ttext\nand é 漢", "plain\ttext\nand é 漢"),
            ("\x1b[5A\x1b[Jgone", "\u{fffd}[5A\u{fffd}[Jgone"),
            ("\x1b]0;title\x07", "\u{fffd}]0;title\u{fffd}"),
            ("\u{9b}2J\u{9d}0;t\u{9c}", "\u{fffd}2J\u{fffd}0;t\u{fffd}"),
            ("a\rb\x08c", "a\u{fffd}b\u{fffd}c"),
            ("rm \u{202e}txt.\u{2066}", "rm \u{fffd}txt.\u{fffd}"),
            ("\u{1f468}\u{200d}\u{1f469}", "\u{1f468}\u{200d}\u{1f469}"),
            ("\x1b[38;5;1mx\x1b[8mhidden", "\u{fffd}[38;5;1mx\u{fffd}[8mhidden"),
        ];
        for (text, expected) in rows {
            assert_eq!(filtered(text, Colours::Kept), expected, "{text:?}");
            assert_eq!(filtered(text, Colours::None), expected, "{text:?}");
        }
        assert_eq!(filtered("\x1b[31mred\x1b[0m", Colours::Kept), "\x1b[31mred\x1b[0m");
        assert_eq!(filtered("\x1b[31mred", Colours::None), "\u{fffd}[31mred");
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_and_its_colours_end() {
        let rows = [
            ("12345678", "12345678"),
            ("123456789", "1234567…"),
            ("漢漢漢漢", "漢漢漢漢"),
            ("漢漢漢漢.", "漢漢漢…"),
            ("1漢漢漢漢", "1漢漢漢…"),
            ("\x1b[31m1234\x1b[0m5678", "\x1b[31m1234\x1b[0m5678"),
            ("\x1b[31m1234567890\x1b[0m", "\x1b[31m1234567…\x1b[0m"),
            ("12345678\x1b[31m\x1b[0m", "12345678\x1b[31m\x1b[0m"),
            ("a\tb\nc", "a b\u{fffd}c"),
        ];
        for (line, expected) in rows {
            assert_eq!(cut(line, 8, Colours::Kept), expected, "{line:?}");
        }
    }

    #[test]
    fn what_somebody_decides_on_is_spelled_out() {
        assert_eq!(
            spelled_out("ls\u{200b} \u{202e}a\x1b[2K\n\tb"),
            "ls<U+200B> <U+202E>a<U+001B>[2K\n<U+0009>b"
        );
    }
}
