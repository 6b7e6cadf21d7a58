//! An API server for `kubectl`: writes a kubeconfig for its administrator and serves until it is interrupted.
//!
//!     cargo run -p sim-apiserver --example serve -- /tmp/kubeconfig
//!     kubectl --kubeconfig /tmp/kubeconfig get services -A

use std::error::Error;

use sim_apiserver::{ApiServer, User};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: serve <path of the kubeconfig to write>")?;
    let server = ApiServer::builder().build();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    std::fs::write(&path, server.kubeconfig(User::admin(), listener.local_addr()?))?;
    tokio::select! {
        ended = server.serve(listener) => ended?,
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    Ok(())
}
