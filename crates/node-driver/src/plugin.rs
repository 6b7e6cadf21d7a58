//! Serves a [`Driver`] to rancher-machine over its plugin protocol.
//!
//! ```text
//! exec ──► listen on 127.0.0.1 ──► first line of standard output: the address ──► serve
//!                                   Close: answered, then exit 0 ◄──┤
//!                   no Heartbeat for 10 s: exit 1, nothing undone ◄─┘
//! ```
//! Nothing else ends the process: rancher-machine hangs for ever if its plugin ends early (docs/contract/node-driver.md#1.6). The
//! end of a connection cancels no call.

use std::{fmt::Display, future::Future, io, net::TcpListener, sync::Arc, time::Duration};

use go_rpc::{FromGob, Limits, Server, Service, ToGob};
use tokio::sync::Notify;

use crate::{
    driver::{Driver, Error},
    flags,
    options::Options,
};

/// The version of the protocol that rancher-machine asks for.
const VERSION: i64 = 1;
/// The driver's name in rancher-machine, whatever the file's name is.
const NAME: &str = "harvester";
/// Names of the service; old clients use the second.
const SERVICES: [&str; 2] = ["RPCServerDriver", "RpcServerDriver"];
/// Without a heartbeat for so long the client is gone.
pub const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(10);

/// How a plugin process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// The client asked for it.
    Closed,
    /// The client is gone.
    ClientGone,
}

/// Listens, and writes the address to `out` as the first line.
///
/// # Errors
/// The system's.
pub fn listen(out: &mut impl io::Write) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    writeln!(out, "{}", listener.local_addr()?)?;
    out.flush()?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves until the client calls `Close` or sends no more heartbeats. Must run inside a tokio runtime.
///
/// # Errors
/// The runtime refuses the listener.
pub async fn serve(listener: TcpListener, driver: Arc<Driver>) -> io::Result<Shutdown> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let (alive, closed) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let server = server(&driver, &alive, &closed);
    tokio::select! {
        never = server.listen(listener) => match never {},
        () = closed.notified() => Ok(Shutdown::Closed),
        () = heartbeats_end(&alive) => Ok(Shutdown::ClientGone),
    }
}

/// Returns after [`HEARTBEAT_TIMEOUT`] without a heartbeat.
async fn heartbeats_end(alive: &Notify) {
    while tokio::time::timeout(HEARTBEAT_TIMEOUT, alive.notified()).await.is_ok() {}
}

fn server(driver: &Arc<Driver>, alive: &Arc<Notify>, closed: &Arc<Notify>) -> Server {
    let (alive, closed) = (alive.clone(), closed.clone());
    let service = Methods { driver: driver.clone(), service: Service::new() }
        .ask("GetVersion", |_, ()| async { Ok::<_, Error>(VERSION) })
        .ask("DriverName", |_, ()| async { Ok::<_, Error>(NAME.to_owned()) })
        .ask("GetCreateFlags", |_, ()| async { Ok::<_, Error>(flags::as_gob()) })
        .ask("SetConfigRaw", |driver, json: Vec<u8>| async move { driver.set_config_raw(&json) })
        .ask("GetConfigRaw", |driver, ()| async move { Ok::<_, Error>(driver.config().to_json()) })
        .ask(
            "SetConfigFromFlags",
            |driver, given: Options| async move { driver.set_config_from_flags(&given) },
        )
        .ask("GetMachineName", |driver, ()| async move { Ok::<_, Error>(driver.machine_name()) })
        .ask("GetSSHKeyPath", |driver, ()| async move { Ok::<_, Error>(driver.ssh_key_path()) })
        .ask("GetSSHPort", |driver, ()| async move { Ok::<_, Error>(driver.ssh_port()) })
        .ask("GetSSHUsername", |driver, ()| async move { Ok::<_, Error>(driver.ssh_user()) })
        .ask("GetSSHHostname", |driver, ()| async move { driver.ip().await })
        .ask("GetIP", |driver, ()| async move { driver.ip().await })
        .ask("GetIPv6", |driver, ()| async move { driver.ipv6() })
        .ask("GetURL", |driver, ()| async move { driver.url().await })
        .ask("GetState", |driver, ()| async move { driver.state().await.map(|state| state as i64) })
        .ask("PreCreateCheck", |driver, ()| async move { driver.pre_create_check().await })
        .ask("Create", |driver, ()| async move { driver.create().await })
        .ask("Remove", |driver, ()| async move { driver.remove().await })
        .ask("Start", |driver, ()| async move { driver.start().await })
        .ask("Stop", |driver, ()| async move { driver.stop().await })
        .ask("Kill", |driver, ()| async move { driver.kill().await })
        .ask("Restart", |driver, ()| async move { driver.restart().await })
        .service
        .method("Heartbeat", move |()| {
            alive.notify_one();
            async { Ok::<_, Error>(()) }
        })
        .method_then("Close", |()| async { Ok::<_, Error>(()) }, move || closed.notify_one());
    Server::new(Limits::default(), SERVICES.map(|name| (name, service.clone())))
}

/// Methods of one driver.
struct Methods {
    driver: Arc<Driver>,
    service: Service,
}

impl Methods {
    fn ask<A, R, E, F>(self, name: &str, method: impl Fn(Arc<Driver>, A) -> F + Send + Sync + 'static) -> Self
    where
        A: FromGob,
        R: ToGob,
        E: Display,
        F: Future<Output = Result<R, E>> + Send + 'static,
    {
        let Self { driver, service } = self;
        let of = driver.clone();
        Self { driver, service: service.method(name, move |argument| method(of.clone(), argument)) }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn heartbeats_keep_it_alive_and_ten_seconds_without_one_end_it() {
        let alive = Arc::new(Notify::new());
        let heart = alive.clone();
        let began = Instant::now();
        let beating = tokio::spawn(async move {
            for _ in 0..5 {
                sleep(Duration::from_secs(9)).await;
                heart.notify_one();
            }
        });
        heartbeats_end(&alive).await;
        assert_eq!(began.elapsed(), Duration::from_secs(55));
        beating.await.unwrap();
    }

    #[test]
    fn the_address_is_the_first_line() {
        let mut out = vec![];
        let listener = listen(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, format!("127.0.0.1:{}\n", listener.local_addr().unwrap().port()));
    }
}
