//! Waiting for the host, by a watch on one object, for as long as a call may take.

use std::{fmt::Debug, time::Duration};

use controller_kit::error_message;
use kube::{Api, Resource, runtime::wait::await_condition};
use serde::de::DeserializeOwned;
use tonic::Code;

use crate::refusal::Refusal;

/// A call waits so long for the host, then the caller comes again. The sidecars give up after 110 s, and with them a
/// call ends at once: nothing waits on behalf of a caller that is gone (docs/contract/csi-driver.md#deadlines).
pub(crate) const WAITS_FOR: Duration = Duration::from_secs(60);

/// The object when it is as wanted, or `None` when there is none. `what` says what is waited for, as in
/// "PersistentVolumeClaim shop/pvc-1 on the host is not bound".
pub(super) async fn until<K>(
    api: Api<K>,
    name: &str,
    what: &str,
    is_done: impl Fn(&K) -> bool,
) -> Result<Option<K>, Refusal>
where
    K: Clone + Debug + Send + DeserializeOwned + Resource + 'static,
{
    let found = await_condition(api, name, |object: Option<&K>| object.is_none_or(&is_done));
    match tokio::time::timeout(WAITS_FOR, found).await {
        Ok(Ok(object)) => Ok(object),
        Ok(Err(error)) => Err(Refusal::new(Code::Unavailable, format!("{what}: {}", error_message(&error)))),
        Err(_) => Err(Refusal::new(
            Code::DeadlineExceeded,
            format!("{what} after {} s: it goes on, call again", WAITS_FOR.as_secs()),
        )),
    }
}
