//! A network of our own between a client and a server: a loopback proxy whose connections can be cut.

#![allow(dead_code, reason = "each target that includes this module uses its own part of it")]
#![expect(clippy::expect_used, reason = "a broken test rig should stop the test")]

use std::{
    future::pending,
    io,
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

/// A running proxy; dropping it cuts all connections.
pub(crate) struct Proxy {
    address: SocketAddr,
    state: watch::Sender<State>,
    _server: JoinSet<()>,
}

#[derive(Default)]
struct State {
    /// Connections of an earlier age are cut.
    age: u64,
    /// New connections are cut at once.
    dark: bool,
    /// How often event streams were stalled: those that were open stay open and carry nothing.
    stalls: u64,
    /// New connections that were cut so.
    refused: usize,
    open: usize,
}

impl Proxy {
    /// A proxy in front of `http://host:port`.
    pub(crate) async fn start(url: &str) -> Self {
        let target: SocketAddr =
            url.strip_prefix("http://").and_then(|host| host.parse().ok()).expect("an address");
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("bind the proxy's port");
        let address = listener.local_addr().expect("the proxy's address");
        let state = watch::Sender::new(State::default());
        let mut server = JoinSet::new();
        server.spawn(serve(listener, target, state.clone()));
        Self { address, state, _server: server }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Cuts all connections; new ones are fine.
    pub(crate) fn cut(&self) {
        self.state.send_modify(|state| state.age += 1);
    }

    /// Lets nothing through on the event streams that are open, without ending them.
    pub(crate) fn stall_streams(&self) {
        self.state.send_modify(|state| state.stalls += 1);
    }

    /// Cuts all connections, and new ones as they come.
    pub(crate) fn go_dark(&self) {
        self.state.send_modify(|state| {
            state.age += 1;
            state.dark = true;
            state.refused = 0;
        });
    }

    /// Lets new connections through again.
    pub(crate) fn light_up(&self) {
        self.state.send_modify(|state| state.dark = false);
    }

    /// Waits until so many connections have been tried in the dark.
    pub(crate) async fn wait_until_refused(&self, n: usize) {
        self.state
            .subscribe()
            .wait_for(|state| state.refused >= n)
            .await
            .expect("the proxy holds its own state");
    }

    /// Waits until no client is connected.
    pub(crate) async fn wait_until_unused(&self) {
        self.state
            .subscribe()
            .wait_for(|state| state.open == 0)
            .await
            .expect("the proxy holds its own state");
    }
}

async fn serve(listener: TcpListener, target: SocketAddr, state: watch::Sender<State>) {
    // Connections live in the set, so that they end together with this task.
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        connections.spawn(carry(client, target, state.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn carry(mut client: TcpStream, target: SocketAddr, state: watch::Sender<State>) {
    let mut now = state.subscribe();
    let mut age = None;
    state.send_modify(|state| {
        if state.dark {
            state.refused += 1;
        } else {
            state.open += 1;
            age = Some(state.age);
        }
    });
    let Some(age) = age else { return };
    let carried = async {
        let mut server = TcpStream::connect(target).await?;
        // A lone small write must not wait for an acknowledgement.
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (mut from_client, mut to_client) = client.split();
        let (mut from_server, mut to_server) = server.split();
        // How many stalls there had been when this connection became an event stream.
        let stream_since = AtomicU64::new(u64::MAX);
        let requests = async {
            let mut buffer = [0; 16 * 1024];
            loop {
                let n_bytes = from_client.read(&mut buffer).await?;
                if buffer.starts_with(b"GET /event") {
                    stream_since.store(state.borrow().stalls, Relaxed);
                }
                to_server.write_all(&buffer[..n_bytes]).await?;
                if n_bytes == 0 {
                    return io::Result::Ok(());
                }
            }
        };
        let mut stalls = state.subscribe();
        let stalled = async {
            drop(stalls.wait_for(|state| state.stalls > stream_since.load(Relaxed)).await);
        };
        let answers = async {
            tokio::select! {
                copied = copy(&mut from_server, &mut to_client) => copied.map(drop),
                () = stalled => pending().await,
            }
        };
        // Neither side of HTTP ends half a connection, and a server that is still starting would never end the other half.
        tokio::select! {
            done = requests => done,
            done = answers => done,
        }
    };
    tokio::select! {
        // Either side may go away as it likes.
        _ = carried => {}
        _ = now.wait_for(|state| state.age != age) => {}
    }
    state.send_modify(|state| state.open -= 1);
}
