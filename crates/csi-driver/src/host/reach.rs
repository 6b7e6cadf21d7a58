//! How the host is reached: its kubeconfig is looked for, awaited, and followed. Until then each request fails with the
//! reason.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use cloud_config::{Connection, Options, Places};
use kube::{Client, client::Body};
use program::{TaskGroup, health::Check};
use tokio::{sync::watch, time::sleep};
use tonic::codegen::http::{Request, Response};
use tower::BoxError;

use super::{Host, missing::Missing};
use crate::credential::Way;

/// How often a kubeconfig that is not there, or of no use, is looked for.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Why the host is out of reach before the first look.
pub(crate) const UNREAD: &str = "the kubeconfig has not been read yet";

/// The host, or why it is not known yet.
pub type Reached = Result<Host, String>;

/// The host of which nothing is known: each request fails with the reason, so that each call is checked as ever, and is
/// UNAVAILABLE where it needs the host.
pub(crate) fn unreached(why: &str) -> Host {
    let why = why.to_owned();
    let refuse = tower::service_fn(move |_: Request<Body>| {
        let why = why.clone();
        async move { Err::<Response<Body>, _>(BoxError::from(why)) }
    });
    Host::new(Client::new(refuse, "default"), "default")
}

/// The way to the host.
pub(crate) struct Reaching<T> {
    places: Places,
    options: Options,
    /// Hears of the host, or of why there is none.
    tell: T,
    missing: Missing,
    check: Check,
    /// Hears of the way there.
    way: watch::Sender<Option<Way>>,
    /// The last reason that was told.
    said: String,
}

impl<T: Fn(Reached)> Reaching<T> {
    /// By the kubeconfig of these places, or that of the usual ones. Nothing is looked at yet.
    pub(crate) fn new(
        places: Places,
        options: Options,
        missing: Missing,
        check: Check,
        way: watch::Sender<Option<Way>>,
        tell: T,
    ) -> Self {
        Self { places, options, tell, missing, check, way, said: String::new() }
    }

    /// Looks for the kubeconfig once, and tells the host.
    pub(crate) fn look(&mut self) -> Option<Connected> {
        match connect(&self.places, &self.options) {
            Ok(connected) => {
                let namespace = connected.0.namespace();
                let client = self.missing.observe(connected.0.client(), namespace);
                let way = Way { followed: connected.0.followed(), client: connected.0.client() };
                drop(self.way.send_replace(Some(way)));
                (self.tell)(Ok(Host::new(client, namespace)));
                self.check.pass();
                Some(connected)
            }
            Err(why) => {
                self.check.fail(why.clone());
                if self.said != why {
                    tracing::warn!("{why}; it is awaited, and until then the host is out of reach");
                    (self.tell)(Err(why.clone()));
                    self.said = why;
                }
                None
            }
        }
    }

    /// Looks until there is a kubeconfig, and follows the file from then on.
    pub(crate) async fn follow(mut self, mut connected: Option<Connected>, tasks: TaskGroup) {
        let (connection, followed) = loop {
            if let Some(connected) = connected.take() {
                break connected;
            }
            if tasks.stop.run_until_cancelled(sleep(LOOK_AGAIN)).await.is_none() {
                return;
            }
            connected = self.look();
        };
        connection.follow(followed, tasks.stop.clone()).await;
    }
}

/// A connection, and the places to follow.
pub(crate) type Connected = (Connection, Places);

fn connect(places: &Places, options: &Options) -> Result<Connected, String> {
    let given = find(places.given.as_deref())?;
    let followed = Places { given, ..places.clone() };
    let config = followed.read().map_err(|error| error.to_string())?;
    let connection = Connection::open(&config, options).map_err(|error| error.to_string())?;
    tracing::info!(file = config.file, server = config.server(), namespace = config.namespace, "Harvester");
    Ok((connection, followed))
}

/// Where the kubeconfig is: at the given path, else in the usual places (docs/contract/csi-driver.md#kubeconfig).
fn find(given: Option<&Path>) -> Result<Option<PathBuf>, String> {
    let given = given.filter(|path| !path.as_os_str().is_empty());
    let mut missing = Vec::new();
    for path in [given, None] {
        match cloud_config::find(path) {
            Ok(_) => return Ok(path.map(Path::to_owned)),
            Err(cloud_config::Error::Missing { tried }) => missing.extend(tried),
            Err(error) => return Err(error.to_string()),
        }
    }
    let places: Vec<_> = missing.iter().map(|path| path.display().to_string()).collect();
    Err(format!(
        "no kubeconfig of the Harvester cluster in {}: put one there, or name it with --kubeconfig",
        places.join(", ")
    ))
}
