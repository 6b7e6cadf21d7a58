//! The command line: `cloud-config serve`.
//!
//! Exit codes: 0 after SIGTERM or Ctrl-C; 1 it cannot be served; 2 wrong flags.

use std::{ffi::OsString, fs, net::SocketAddr, path::PathBuf, process::ExitCode};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use cloud_config::Options;
use program::{
    Process,
    flags::{Flag, Reader, Table, listen_address},
    logging::Logging,
    serving::{self, Certificate},
};

use super::{PATH, Target, router};
use crate::request;

/// The flags.
pub const FLAGS: Table = Table {
    program: "harvester-cloud-provider cloud-config serve",
    about: "Serves Harvester's kubeconfig API, GET and POST /v1/harvester/kubeconfig, over TLS: POST does what \
            generate does, GET gives what is there; with the rights of the caller's token, and with none of its own.",
    flags: &[
        Flag::LOGLEVEL,
        Flag::value("address", "ADDRESS:PORT", "where to serve, e.g. :8443; there is no default"),
        Flag::value("tls-cert-file", "FILE", "certificate of this address, in PEM, its chain included"),
        Flag::value("tls-private-key-file", "FILE", "its key"),
        Flag::value("api-server", "URL", "Harvester's API server, as this process reaches it")
            .default("https://kubernetes.default.svc"),
        Flag::value(
            "api-server-ca",
            "FILE",
            "who signed the API server's certificate, in PEM; else the authorities of the system",
        ),
        Flag::value(
            "server",
            "URL",
            "the address of Harvester that kubeconfigs have; else its VIP, which the caller must be allowed to read",
        ),
        Flag::switch(
            "no-check",
            "do not try address, certificate and token before a kubeconfig is given out",
        ),
    ],
};

#[derive(Debug)]
struct Flags {
    address: SocketAddr,
    certificate: Certificate,
    api_server: String,
    ca: Option<PathBuf>,
    server: Option<String>,
    check: bool,
}

/// Runs the process; `args` begins with its name.
pub(crate) fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let check = |mut reader: Reader<'_>| {
        let flags = read(&mut reader);
        let logging = Logging::logrus(&reader.text("loglevel").unwrap_or_default());
        reader.finish((logging, flags))
    };
    program::main(&FLAGS, env!("CARGO_PKG_VERSION"), args, check, serve)
}

fn read(reader: &mut Reader<'_>) -> Flags {
    let mut needed = |name: &str| {
        let text = reader.text(name);
        text.unwrap_or_else(|| {
            reader.fault(format!("--{name} is needed: this is served over TLS alone, where it is asked for"));
            String::new()
        })
    };
    let [certificate, key] =
        ["tls-cert-file", "tls-private-key-file"].map(|name| PathBuf::from(needed(name)));
    let unspecified: SocketAddr = ([0, 0, 0, 0], 0).into();
    // an empty one is told already
    let address = match needed("address").as_str() {
        "" => unspecified,
        _ => reader.read("address", unspecified, listen_address),
    };
    Flags {
        address,
        certificate: Certificate::Files { certificate, key },
        api_server: reader.read("api-server", String::new(), request::server),
        ca: reader.text("api-server-ca").map(PathBuf::from),
        server: reader.optional("server", request::server),
        check: !reader.is_on("no-check"),
    }
}

async fn serve(flags: Flags, process: Process) -> Result<(), String> {
    let ca = match &flags.ca {
        Some(file) => {
            let pem =
                fs::read_to_string(file).map_err(|error| format!("read {}: {error}", file.display()))?;
            if !pem.contains("-----BEGIN CERTIFICATE-----") {
                return Err(format!("--api-server-ca {}: there is no certificate in it", file.display()));
            }
            STANDARD.encode(pem)
        }
        None => String::new(),
    };
    let agent = format!("harvester-cloud-provider/{} cloud-config serve", env!("CARGO_PKG_VERSION"));
    let target = Target {
        api_server: flags.api_server,
        ca,
        server: flags.server,
        check: flags.check,
        options: Options::named(&agent),
    };
    let told = format!("serving https://{}{PATH} for {}", flags.address, target.api_server);
    serving::https(&process.tasks, flags.address, &flags.certificate, router(target)).await?;
    tracing::info!("{told}");
    process.tasks.stop.cancelled().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(args: &[&str]) -> Vec<String> {
        let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut reader = FLAGS.read(&args, |_| None);
        let flags = read(&mut reader);
        reader.finish(flags).err().unwrap_or_default()
    }

    #[test]
    fn nothing_is_served_unless_an_address_and_a_certificate_are_named() {
        let told = faults(&[]);
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(
            told.iter().all(|fault| fault.contains("is needed: this is served over TLS alone")),
            "{told:?}"
        );
        let good = ["--address=:8443", "--tls-cert-file=a", "--tls-private-key-file=b"];
        assert_eq!(faults(&good), [""; 0]);
        let plain = [&good[..], &["--api-server=http://harvester"]].concat();
        assert!(faults(&plain)[0].contains("https://"), "{:?}", faults(&plain));
    }
}
