//! Writes the slices that are decided.

use k8s_openapi::api::{
    core::v1::{Pod, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};

use controller_kit::{Action, Cache, ObjectKey, Queue};
use program::TaskGroup;

use super::{Family, Step, decide};

/// A write was refused.
#[derive(Debug, thiserror::Error)]
#[error("write EndpointSlice of Service {service}")]
struct Error {
    service: ObjectKey,
    source: kube::Error,
}

/// Keeps slices in step until the life ends.
pub(crate) fn start(
    tasks: &TaskGroup,
    client: &Client,
    services: &Cache<Service>,
    slices: &Cache<EndpointSlice>,
    pods: &Cache<Pod>,
) {
    let queue = Queue::new();
    let add = queue.clone();
    services.on_change(move |change| add.add(change.key.clone()));
    let add = queue.clone();
    slices.on_change(move |change| {
        let of = Family::ALL.into_iter().filter_map(|family| family.service_of(&change.key.name));
        of.for_each(|service| add.add(ObjectKey::new(&change.key.namespace, service)));
    });
    let (add, known) = (queue.clone(), services.clone());
    pods.on_change(move |change| {
        let keys = known.list().into_iter().map(|service| ObjectKey::of(&*service));
        keys.filter(|key| key.namespace == change.key.namespace).for_each(|key| add.add(key));
    });
    let (client, services, slices, pods) = (client.clone(), services.clone(), slices.clone(), pods.clone());
    let in_life = tasks.clone();
    tasks.spawn_until_stop(async move {
        services.ready().await;
        slices.ready().await;
        pods.ready().await;
        queue.run(&in_life, 2, move |key| {
            let (client, services, slices, pods) =
                (client.clone(), services.clone(), slices.clone(), pods.clone());
            async move {
                let error = |source| Error { service: key.clone(), source };
                let all = pods.list();
                let all: Vec<_> = all.iter().map(|pod| &**pod).collect();
                let api: Api<EndpointSlice> = Api::namespaced(client.clone(), &key.namespace);
                for family in Family::ALL {
                    let name = family.slice_name(&key.name);
                    let slice = slices.get(&ObjectKey::new(&key.namespace, &name));
                    let step = decide(services.get(&key).as_deref(), slice.as_deref(), &all, family);
                    let is_new = matches!(step, Some(Step::Create(_)));
                    if is_new && !is_there(&client, &services, &key).await.map_err(error)? {
                        return Ok(Action::AwaitChange);
                    }
                    act(&api, &name, step, &slices).await.map_err(error)?;
                }
                Ok::<_, Error>(Action::AwaitChange)
            }
        });
    });
}

/// Whether the Service that we know is there indeed. A watch that is behind would have us make the slice of one that is
/// gone again and again, as fast as the garbage collector deletes it.
async fn is_there(client: &Client, services: &Cache<Service>, key: &ObjectKey) -> kube::Result<bool> {
    let Some(known) = services.get(key).and_then(|service| service.uid()) else { return Ok(false) };
    match Api::<Service>::namespaced(client.clone(), &key.namespace).get_opt(&key.name).await? {
        Some(service) if service.uid().as_ref() == Some(&known) => return Ok(true),
        Some(service) => drop(services.wrote(service)),
        None => services.gone(key, &known),
    }
    Ok(false)
}

async fn act(
    api: &Api<EndpointSlice>,
    name: &str,
    step: Option<Step>,
    slices: &Cache<EndpointSlice>,
) -> kube::Result<()> {
    let answer = match step {
        None => return Ok(()),
        Some(Step::Create(json)) => {
            let slice = serde_json::from_value(json).expect("what we made is a slice");
            api.create(&PostParams::default(), &slice).await
        }
        Some(Step::Patch(patch)) => api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await,
        Some(Step::Delete) => match api.delete(name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
            answer => return answer.map(drop),
        },
    };
    match answer {
        Ok(slice) => drop(slices.wrote(slice)),
        // made or gone meanwhile: the watch brings us back
        Err(kube::Error::Api(status)) if status.is_already_exists() || status.is_not_found() => {}
        Err(error) => return Err(error),
    }
    Ok(())
}
