//! Runs the service on the server at `OPENCODE_URL`, or without it on a fake inside the program, whose sessions end with it.

#![expect(clippy::print_stdout, reason = "it says where it is")]

use std::{env, error::Error, sync::Arc};

use opencode_conductor::{MemoryStore, OpenCodeClient, Store, test_util::FakeOpenCode};
use opencode_conductor_service::Service;
use opencode_conductor_sqlite::SqliteStore;
use tokio::{net::TcpListener, signal};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let set = |name: &str, default: &str| env::var(name).unwrap_or_else(|_| default.to_owned());
    let (url, store): (String, Arc<dyn Store>) = match env::var("OPENCODE_URL") {
        Ok(url) => (url, Arc::new(SqliteStore::open(set("SERVICE_STORE", "service.db")).await?)),
        // For as long as the program runs.
        Err(_) => (Box::leak(Box::new(FakeOpenCode::start().await?)).url(), Arc::new(MemoryStore::default())),
    };
    // A server without a password does not look at it.
    let client = OpenCodeClient::builder(&url).basic_auth("opencode", set("OPENCODE_SERVER_PASSWORD", ""));
    let service = Service::start(client.build()?, store).await?;
    let listener = TcpListener::bind(set("SERVICE_ADDRESS", "127.0.0.1:8080")).await?;
    println!("http://{} runs tasks on {url}", listener.local_addr()?);
    tokio::select! {
        // Pages that watch would never let it end by themselves.
        interrupted = signal::ctrl_c() => interrupted?,
        () = service.restore_later() => {}
        served = axum::serve(listener, service.router()) => served?,
    }
    service.stop().await;
    Ok(())
}
