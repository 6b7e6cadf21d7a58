//! The credential for the host: how long it lasts is a metric of each process, and whoever leads the healing tells of its
//! end and renews it, where it may be renewed.

use std::sync::Arc;

use cloud_config::{Followed, Options};
use controller_kit::election::Leadership;
use credential_rotation::{
    Clusters, Connect, Rotation, RotationMetrics, SecretName,
    life::{self, Life},
};
use kube::Client;
use program::Clock;
use tokio::sync::watch;

use crate::host::missing::Missing;

/// The way to the host: the kubeconfig in use, and a client that goes by it.
#[derive(Clone)]
pub struct Way {
    pub followed: watch::Receiver<Followed>,
    pub client: Client,
}

/// One for the process.
#[derive(Clone)]
pub struct Credential {
    /// None before there is a kubeconfig.
    pub way: watch::Receiver<Option<Way>>,
    /// Where the leader keeps a copy with a newer token.
    pub secret: Option<SecretName>,
    /// There may be such a copy.
    pub rotates: bool,
    pub options: Options,
    /// How a newer token is tried.
    pub connect: Arc<Connect>,
    pub clock: Clock,
    pub life: Life,
    pub metrics: RotationMetrics,
    pub missing: Missing,
}

impl Credential {
    /// This process has the copy with a newer token, and not the Secret into which the leader puts it.
    pub(crate) const fn is_renewed_by_others(&self) -> bool {
        self.rotates && self.secret.is_none()
    }

    /// Keeps the metric true.
    pub(crate) async fn measure(self) {
        self.follow(|_| ()).await;
    }

    /// What the leader does, until it is dropped.
    pub(crate) async fn lead(self, guest: Client, leadership: &Leadership) {
        let missing = self.missing.clone();
        let told = self.clone().follow(move |event| missing.notice(event));
        tokio::join!(told, self.rotate(guest, leadership));
    }

    async fn follow(mut self, tell: impl Fn(&controller_kit::PendingEvent)) {
        let Some(way) = self.way().await else { return };
        let Self { rotates, options, clock, life, .. } = self;
        life::follow(way.followed, options, clock, life, rotates, tell).await;
    }

    async fn rotate(mut self, guest: Client, leadership: &Leadership) {
        let Some(Way { followed, client }) = self.way().await else { return };
        let Self { secret: Some(secret), connect, clock, metrics, missing, .. } = self else { return };
        let tell = Arc::new(move |event: &_| missing.notice(event));
        let rotation = Rotation { followed, secret, clock, metrics, tell, connect };
        rotation.run(Clusters { guest, harvester: leadership.client(client) }).await;
    }

    async fn way(&mut self) -> Option<Way> {
        self.way.wait_for(Option::is_some).await.ok().and_then(|way| way.clone())
    }
}
