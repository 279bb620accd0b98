//! The password of every server in the tests, and a watch over everything that is shown: nearly every result passes through
//! [`soon`](super::soon) or [`checked`], and every line that is logged anywhere in the process through [`watch_logs`].

use std::{
    error::Error,
    fmt::Debug,
    io::{self, Write as _},
    sync::Once,
};

use opencode_conductor::{ClientBuilder, ConversationManager, OpenCodeClient};

/// The password of all servers.
pub(crate) const PASSWORD: &str = "Sesam0effneDich";
/// What `opencode:` and the password are on the wire.
pub(crate) const ENCODED: &str = "b3BlbmNvZGU6U2VzYW0wZWZmbmVEaWNo";

/// A client that knows the password.
pub(crate) fn client(url: &str) -> ClientBuilder {
    watch_logs();
    let builder = OpenCodeClient::builder(url).basic_auth("opencode", PASSWORD);
    check(&builder);
    builder
}

/// A manager that knows the password, and has defaults for everything else.
pub(crate) fn connect(url: &str) -> ConversationManager {
    let manager = ConversationManager::builder(client(url).build().unwrap()).build();
    check(&manager);
    manager
}

/// The secret in a text, if there is one.
pub(crate) fn leak(text: &str) -> Option<&'static str> {
    [PASSWORD, ENCODED].into_iter().find(|secret| text.contains(secret))
}

/// Fails the test if the value shows a secret.
#[track_caller]
pub(crate) fn check(value: &impl Debug) {
    for text in [format!("{value:?}"), format!("{value:#?}")] {
        assert_eq!(leak(&text), None, "in {text}");
    }
}

/// The result, which shows no secret; nor do its error and the causes of that.
#[track_caller]
pub(crate) fn checked<T: Debug, E: Error + 'static>(result: Result<T, E>) -> Result<T, E> {
    check(&result);
    let mut cause = result.as_ref().err().map(|error| error as &(dyn Error + 'static));
    while let Some(error) = cause {
        assert_eq!(leak(&error.to_string()), None, "in {error}");
        check(&error);
        cause = error.source();
    }
    result
}

/// Looks at every line that is logged from now on in this process, at every level.
pub(crate) fn watch_logs() {
    static ONCE: Once = Once::new();
    // A thread that logs may belong to no test, or to one that ignores a panic. The run ends, so that it cannot be missed.
    let give_up = |line: &str| {
        drop(writeln!(io::stderr(), "error: a secret was logged: {line}"));
        std::process::exit(101);
    };
    ONCE.call_once(|| tracing::subscriber::set_global_default(subscriber(give_up)).unwrap());
}

fn subscriber(on_leak: impl Fn(&str) + Copy + Send + Sync + 'static) -> impl tracing::Subscriber {
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || Watch(on_leak))
        .finish()
}

/// Takes lines, each in one piece, and keeps none.
struct Watch<F>(F);

impl<F: Fn(&str)> io::Write for Watch<F> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        if leak(&text).is_some() {
            (self.0)(&text);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The watch itself is tested, or its silence would mean nothing.
mod tests {
    use std::{
        panic::catch_unwind,
        sync::atomic::{AtomicUsize, Ordering::SeqCst},
    };

    use super::{ENCODED, PASSWORD, check, checked, connect, subscriber};

    #[test]
    fn a_value_or_an_error_with_a_secret_is_caught() {
        #[derive(Debug, thiserror::Error)]
        #[error("refused")]
        struct Outer(#[source] Inner);
        #[derive(thiserror::Error)]
        #[error("wrong password {PASSWORD}")]
        struct Inner;
        impl std::fmt::Debug for Inner {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("Inner")
            }
        }
        assert!(catch_unwind(|| check(&format!("password: {PASSWORD}"))).is_err());
        assert!(catch_unwind(|| check(&Some(("authorization", format!("Basic {ENCODED}"))))).is_err());
        assert!(catch_unwind(|| checked(Err::<(), _>(Outer(Inner)))).is_err(), "also in a cause");
        check(&"no secret");
        checked(Err::<(), _>(std::io::Error::other("no secret"))).unwrap_err();
    }

    #[test]
    fn a_line_with_a_secret_is_caught_at_every_level() {
        static CAUGHT: AtomicUsize = AtomicUsize::new(0);
        let count = |_: &str| {
            CAUGHT.fetch_add(1, SeqCst);
        };
        tracing::subscriber::with_default(subscriber(count), || {
            tracing::trace!(password = PASSWORD, "a field");
            tracing::debug!("a message with {ENCODED}");
            tracing::warn!("no secret");
            let _span = tracing::info_span!("a span", of = PASSWORD).entered();
            tracing::error!("no secret, but in a span with one");
        });
        assert_eq!(CAUGHT.load(SeqCst), 3);
    }

    #[test]
    fn the_whole_process_is_watched() {
        connect("http://127.0.0.1:9");
        assert!(tracing::enabled!(target: "any::module", tracing::Level::TRACE));
    }
}
