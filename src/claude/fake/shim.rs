//! The executable: a script that hands everything to the fake inside the test, and does what that says.

use std::io;

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

/// The executable. It opens two connections: one brings what it prints; the other takes its arguments and what it reads, and brings
/// its exit status and what it writes to standard error.
pub(super) fn script(port: u16, version: &str) -> String {
    format!(
        r#"#!/usr/bin/env bash
if [[ ${{1-}} == --version ]]; then echo '{version}'; exit; fi
trap '' PIPE
exec 3<>/dev/tcp/127.0.0.1/{port} 4<>/dev/tcp/127.0.0.1/{port} 5<&0
printf 'in %s %s\n' $$ $# >&4
printf '%s\0' "$CONDUCTOR_DIRECTORY" "$@" >&4
{{ while IFS= read -r line; do printf '%s\n' "$line"; done <&5; printf '{{"type":"eof"}}\n'; }} >&4 2>/dev/null &
exec 5<&- 0<&-
printf 'out %s %s\n' $$ $! >&3
cat <&3 2>/dev/null
read -r end <&4
case $end in
    KILL | STOP) kill -s "$end" -- -$$ ;;
    *) cat <&4 >&2; exit "${{end:-1}}" ;;
esac
"#
    )
}

/// One half of a process, as it arrives.
pub(super) enum Half {
    /// What it prints, and which of its processes reads its standard input.
    Output(u32, OwnedWriteHalf, u32),
    Input(u32, Called),
}

/// How the executable was called, and what it reads.
pub(super) struct Called {
    pub(super) directory: String,
    pub(super) arguments: Vec<String>,
    pub(super) input: BufReader<OwnedReadHalf>,
    pub(super) exit: OwnedWriteHalf,
}

impl Half {
    /// Reads which half of which process a connection is.
    pub(super) async fn accept(connection: TcpStream) -> io::Result<Self> {
        let (read, write) = connection.into_split();
        let mut read = BufReader::new(read);
        let mut line = String::new();
        read.read_line(&mut line).await?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |word: &str| word.parse::<u32>().map_err(io::Error::other);
        match *words.as_slice() {
            ["out", process, reader] => Ok(Self::Output(number(process)?, write, number(reader)?)),
            ["in", process, n_arguments] => {
                let mut texts = Vec::new();
                for _ in 0..=number(n_arguments)? {
                    let mut text = Vec::new();
                    (&mut read).take(1 << 20).read_until(0, &mut text).await?;
                    text.pop();
                    texts.push(String::from_utf8_lossy(&text).into_owned());
                }
                let directory = texts.remove(0);
                let called = Called { directory, arguments: texts, input: read, exit: write };
                Ok(Self::Input(number(process)?, called))
            }
            _ => Err(io::Error::other("not the executable of this fake")),
        }
    }
}

/// How the executable ends, after it has printed everything.
#[derive(Debug)]
pub(super) enum End {
    /// With a status, and with this on standard error.
    Exit(u8, String),
    /// Killed, with everything that it started.
    Killed,
    /// Not at all: it is stopped, with everything that it started.
    Stopped,
}

impl End {
    /// Tells the executable, unless it was killed meanwhile.
    pub(super) async fn tell(self, mut connection: OwnedWriteHalf) {
        let text = match self {
            Self::Exit(status, stderr) => format!("{status}\n{stderr}"),
            Self::Killed => "KILL\n".to_owned(),
            Self::Stopped => "STOP\n".to_owned(),
        };
        drop(connection.write_all(text.as_bytes()).await);
        drop(connection.shutdown().await);
    }
}
