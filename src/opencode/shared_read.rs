//! Reads that many turns want at once.
//!
//! The status of sessions and the open requests are lists of a whole directory. A process that goes on with a thousand turns there would
//! ask for each of them a thousand times, and decode a thousand times what is the same for all.

use std::{
    collections::HashMap,
    future::Future,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{sync::Semaphore, time::timeout};

use super::{
    model::DefaultModel,
    wire::{Decoded, PermissionRequest, QuestionRequest, StatusMap},
};
use crate::{directory::Directory, lock::lock};

/// How long to wait for the request of another reader before making one's own: a request that hangs must not hang all readers.
const PATIENCE: Duration = Duration::from_secs(1);

/// The lists of one directory, and its default model.
#[derive(Debug, Default)]
pub(super) struct DirectoryReads {
    pub(super) status: SharedRead<StatusMap>,
    pub(super) permissions: SharedRead<Decoded<PermissionRequest>>,
    pub(super) questions: SharedRead<Decoded<QuestionRequest>>,
    pub(super) model: DefaultModel,
}

/// What is shared in each directory that a session is open in.
#[derive(Debug, Default)]
pub(super) struct AllReads(Mutex<HashMap<Directory, Weak<DirectoryReads>>>);

impl AllReads {
    pub(super) fn of(&self, directory: &Directory) -> Arc<DirectoryReads> {
        let mut known = lock(&self.0);
        if let Some(reads) = known.get(directory).and_then(Weak::upgrade) {
            return reads;
        }
        known.retain(|_, reads| reads.strong_count() > 0);
        let reads = Arc::default();
        known.insert(directory.clone(), Arc::downgrade(&reads));
        reads
    }
}

/// A read whose answer serves all readers who asked before it began.
#[derive(Debug)]
pub(super) struct SharedRead<T> {
    one_at_a_time: Semaphore,
    n_begun: AtomicU64,
    /// The number of the read that was done last, and its answer; nothing if it failed.
    last: Mutex<(u64, Option<Arc<T>>)>,
}

impl<T> Default for SharedRead<T> {
    fn default() -> Self {
        Self { one_at_a_time: Semaphore::new(1), n_begun: AtomicU64::new(0), last: Mutex::new((0, None)) }
    }
}

impl<T> SharedRead<T> {
    /// The answer of a read that began after this call, which is `read` unless another reader's serves as well.
    pub(super) async fn get<E>(&self, read: impl Future<Output = Result<T, E>>) -> Result<Arc<T>, E> {
        let asked = self.n_begun.load(SeqCst);
        let Ok(Ok(_permit)) = timeout(PATIENCE, self.one_at_a_time.acquire()).await else {
            return read.await.map(Arc::new);
        };
        {
            let (number, answer) = &*lock(&self.last);
            if *number > asked
                && let Some(answer) = answer
            {
                return Ok(Arc::clone(answer));
            }
        }
        let number = self.n_begun.fetch_add(1, SeqCst) + 1;
        let answer = read.await.map(Arc::new);
        *lock(&self.last) = (number, answer.as_ref().ok().cloned());
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures_util::future::join_all;
    use tokio::sync::Notify;

    use super::*;

    /// Reads that wait for a signal and count.
    #[derive(Default)]
    struct Server {
        read: SharedRead<usize>,
        n_requests: AtomicUsize,
        may_answer: Notify,
    }

    impl Server {
        async fn request(&self) -> Result<usize, &'static str> {
            let number = self.n_requests.fetch_add(1, SeqCst) + 1;
            self.may_answer.notified().await;
            if number == 13 { Err("the thirteenth fails") } else { Ok(number) }
        }

        async fn get(&self) -> Result<usize, &'static str> {
            self.read.get(self.request()).await.map(|number| *number)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_asks_while_a_request_is_under_way_gets_the_next() {
        let server = Server::default();
        let first = async {
            tokio::task::yield_now().await;
            server.may_answer.notify_one();
            tokio::task::yield_now().await;
            server.may_answer.notify_one();
        };
        let (answers, ()) = futures_util::join!(join_all((0..100).map(|_| server.get())), first);
        assert_eq!(answers[0], Ok(1));
        assert!(answers[1..].iter().all(|answer| *answer == Ok(2)), "{answers:?}");
        assert_eq!(server.n_requests.load(SeqCst), 2);
        server.may_answer.notify_one();
        assert_eq!(server.get().await, Ok(3), "what is known is not news");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_hangs_holds_up_nobody_for_long() {
        let server = Server::default();
        let hangs = server.get();
        let others = async {
            let others = join_all((0..3).map(|_| server.get()));
            let answer = async {
                for _ in 0..4 {
                    tokio::time::sleep(PATIENCE * 2).await;
                    server.may_answer.notify_one();
                }
            };
            futures_util::join!(others, answer).0
        };
        let (first, others) = futures_util::join!(hangs, others);
        assert_eq!(first, Ok(1));
        assert_eq!(others.iter().flatten().count(), 3);
        assert_eq!(server.n_requests.load(SeqCst), 4, "each of them asked on its own");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_told_to_one_and_a_request_that_is_dropped_to_nobody() {
        let server = Server::default();
        server.n_requests.store(12, SeqCst);
        {
            let mut dropped = Box::pin(server.get());
            assert!(futures_util::poll!(&mut dropped).is_pending());
        }
        server.n_requests.store(12, SeqCst);
        let answer = async {
            for _ in 0..2 {
                tokio::task::yield_now().await;
                server.may_answer.notify_one();
            }
        };
        let (failed, good, ()) = futures_util::join!(server.get(), server.get(), answer);
        assert_eq!(failed, Err("the thirteenth fails"));
        assert_eq!(good, Ok(14));
    }
}
