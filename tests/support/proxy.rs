//! A loopback proxy whose connections can be cut.

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

/// Passes bytes on to a server; dropping it closes the port and every connection.
pub(crate) struct Proxy {
    url: String,
    cuts: watch::Sender<()>,
    _server: JoinSet<()>,
}

impl Proxy {
    /// A proxy of the server at `url`, such as `http://127.0.0.1:4096`.
    pub(crate) async fn start(url: &str) -> Self {
        let upstream = url.trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("bind the proxy's port");
        let address = listener.local_addr().expect("the proxy's address");
        let cuts = watch::Sender::new(());
        let mut server = JoinSet::new();
        server.spawn(serve(listener, upstream, cuts.clone()));
        Self { url: format!("http://{address}"), cuts, _server: server }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Breaks every connection that is open now.
    pub(crate) fn cut(&self) {
        self.cuts.send_replace(());
    }
}

async fn serve(listener: TcpListener, upstream: String, cuts: watch::Sender<()>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((mut client, _)) = listener.accept().await else { continue };
        let mut cut = cuts.subscribe();
        let upstream = upstream.clone();
        connections.spawn(async move {
            let Ok(mut server) = TcpStream::connect(upstream).await else { return };
            tokio::select! {
                _ = copy_bidirectional(&mut client, &mut server) => {}
                _ = cut.changed() => {}
            }
        });
    }
}
