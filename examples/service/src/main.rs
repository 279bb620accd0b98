//! Runs the service on 127.0.0.1:8080: on the server at `OPENCODE_URL`, or without it on a fake inside the program.

#![expect(clippy::print_stdout, reason = "it says where it is")]

use std::{env, error::Error, sync::Arc};

use opencode_conductor::{OpenCodeClient, test_util::FakeOpenCode};
use opencode_conductor_service::Service;
use opencode_conductor_sqlite::SqliteStore;
use tokio::{net::TcpListener, signal};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let fake = FakeOpenCode::start().await?;
    let url = env::var("OPENCODE_URL").unwrap_or_else(|_| fake.url());
    let store =
        SqliteStore::open(env::var("SERVICE_STORE").unwrap_or_else(|_| "service.db".to_owned())).await?;
    let service = Service::start(OpenCodeClient::new(&url)?, Arc::new(store)).await?;
    let listener =
        TcpListener::bind(env::var("SERVICE_ADDRESS").as_deref().unwrap_or("127.0.0.1:8080")).await?;
    println!("http://{} runs tasks on {url}", listener.local_addr()?);
    tokio::select! {
        // Pages that watch would never let it end by themselves.
        interrupted = signal::ctrl_c() => interrupted?,
        served = axum::serve(listener, service.router()) => served?,
    }
    service.stop().await;
    Ok(())
}
