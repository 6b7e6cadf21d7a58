//! The process `harvester-cloud-provider dashboard`.

use std::{
    ffi::OsString,
    io::{self, Write as _},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
};

use cloud_config::{Local, Options, local};
use program::{
    Process,
    flags::{Flag, Reader, Table},
    logging::Logging,
    serving,
};
use tokio::net::TcpListener;

use crate::{
    feed::{Feed, Scope},
    server,
};

const PORT: u16 = 7710;

/// The flags.
pub const FLAGS: Table = Table {
    program: "harvester-cloud-provider dashboard",
    about: "Serves one page on this machine that shows pools and load balancers of Harvester as they change. Writes \
            nothing.",
    flags: &[
        Flag::LOGLEVEL,
        Flag::value(
            "kubeconfig",
            "FILE",
            "Harvester; else the variable KUBECONFIG, else the pod's service account",
        ),
        Flag::value(
            "namespace",
            "NAMESPACE",
            "show the LoadBalancer objects of this namespace alone, for a kubeconfig that may read no others",
        ),
        Flag::value("address", "ADDRESS:PORT", "address on loopback to serve at; port 0 is any that is free")
            .default("127.0.0.1:7710"),
    ],
};

/// The checked values.
#[derive(Debug, PartialEq, Eq)]
struct Flags {
    kubeconfig: Option<PathBuf>,
    namespace: Option<String>,
    address: SocketAddr,
}

/// Runs the process; `args` begins with its name. Exit code 0 after SIGTERM or Ctrl-C, 1 after a failure, 2 for wrong
/// flags.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let check = |mut reader: Reader<'_>| {
        let flags = read(&mut reader);
        let logging = Logging::logrus(&reader.text("loglevel").unwrap_or_default());
        reader.finish((logging, flags))
    };
    program::main(&FLAGS, env!("CARGO_PKG_VERSION"), args, check, serve)
}

fn read(reader: &mut Reader<'_>) -> Flags {
    Flags {
        kubeconfig: reader.text("kubeconfig").map(PathBuf::from),
        namespace: reader.text("namespace"),
        address: reader.read("address", (Ipv4Addr::LOCALHOST, PORT).into(), loopback),
    }
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr =
        text.parse().map_err(|_| format!("{text:?}: write it as 127.0.0.1:{PORT} or [::1]:{PORT}"))?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    Err(format!(
        "{address} is not on loopback: everybody who reaches it would see what the kubeconfig may read. Serve at \
         127.0.0.1:{PORT}, and forward that port, for instance with ssh -L {PORT}:127.0.0.1:{PORT}"
    ))
}

async fn serve(flags: Flags, process: Process) -> Result<(), String> {
    let agent = format!("harvester-cloud-provider/{} dashboard", env!("CARGO_PKG_VERSION"));
    let from = Local { kubeconfig: flags.kubeconfig.clone(), master: None };
    // the exec plugin of a kubeconfig may hang, in a thread that nobody can cancel
    let opening = tokio::task::spawn_blocking(move || local(&from, &Options::named(&agent)));
    let Some(opened) = process.tasks.stop.run_until_cancelled(opening).await else { return Ok(()) };
    let client = opened.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    let taken = |error: io::Error| {
        let address = flags.address;
        format!("serve at {address}: {error}; --address={}:0 takes any port that is free", address.ip())
    };
    let listener = TcpListener::bind(flags.address).await.map_err(taken)?;
    let address = listener.local_addr().map_err(taken)?;
    let scope = Scope { namespace: flags.namespace, cluster: source(flags.kubeconfig.as_deref()) };
    let feed = Feed::start(&process.tasks, &client, &scope);
    let router = server::router(feed, address, process.tasks.stop.clone());
    serving::http_on(&process.tasks, listener, router);
    // nobody may read it
    writeln!(io::stdout(), "dashboard at http://{address}/ (Ctrl-C ends it)").ok();
    process.tasks.stop.cancelled().await;
    Ok(())
}

/// What people know the kubeconfig by.
fn source(flag: Option<&Path>) -> String {
    let variable = || std::env::var_os("KUBECONFIG").filter(|files| !files.is_empty()).map(PathBuf::from);
    let file = flag.map(Path::to_owned).or_else(variable);
    let name = file.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "this cluster".to_owned())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn flags(args: &[&str]) -> Result<Flags, Vec<String>> {
        let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut reader = FLAGS.read(&args, |_| None);
        let flags = read(&mut reader);
        reader.finish(flags)
    }

    #[test]
    fn without_flags_the_page_is_at_the_usual_port_of_loopback() {
        let expected = Flags { kubeconfig: None, namespace: None, address: ([127, 0, 0, 1], PORT).into() };
        assert_eq!(flags(&[]), Ok(expected));
    }

    #[rstest]
    #[case::ipv6("[::1]:0", None)]
    #[case::another_one("127.0.0.9:80", None)]
    #[case::all("0.0.0.0:7710", Some("not on loopback"))]
    #[case::all_of_ipv6("[::]:7710", Some("not on loopback"))]
    #[case::of_the_network("192.0.2.1:7710", Some("not on loopback"))]
    #[case::no_port("127.0.0.1", Some("write it as"))]
    #[case::a_name("localhost:7710", Some("write it as"))]
    fn the_page_is_served_on_loopback_and_nowhere_else(#[case] address: &str, #[case] fault: Option<&str>) {
        let read = flags(&[&format!("--address={address}")]);
        match fault {
            None => assert_eq!(read.unwrap().address.to_string(), address),
            Some(fault) => assert!(read.unwrap_err()[0].contains(fault)),
        }
    }
}
