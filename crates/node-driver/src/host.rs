//! Harvester's API, as far as a machine needs it.

mod answer;
mod error;
pub mod follow;

use http::Request;
use k8s_openapi::api::{
    core::v1::{Namespace, Node, PersistentVolumeClaim, Secret},
    storage::v1::StorageClass,
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{
        ApiResource, DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams,
        Preconditions, PropagationPolicy,
    },
    core::{ClusterResourceScope, GroupVersionKind, NamespaceResourceScope},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use harvester_api::{VirtualMachine, VirtualMachineInstance};

use crate::reference::Reference;
pub use error::{Error, calm};

/// Access to one namespace of a Harvester cluster. Cheap to clone.
#[derive(Clone)]
pub struct Host {
    client: Client,
    server: String,
    namespace: String,
}

/// What a VM can be asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Start,
    Stop,
    /// Stop, and give the guest no time for it.
    Kill,
    Restart,
}

impl Order {
    fn subresource(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop | Self::Kill => "stop",
            Self::Restart => "restart",
        }
    }

    fn body(self) -> Vec<u8> {
        match self {
            Self::Kill => json!({"gracePeriod": 0}).to_string().into_bytes(),
            _ => vec![],
        }
    }
}

impl Host {
    /// `server` is the address of the API, for messages.
    pub fn new(client: Client, server: &str, namespace: &str) -> Self {
        let (server, namespace) = (server.to_owned(), namespace.to_owned());
        Self { client: answer::limited(client), server, namespace }
    }

    /// Address of the API.
    pub fn server(&self) -> &str {
        &self.server
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Objects of a kind in the machine's namespace. They are read later: what handles them is compiled once for all kinds.
    pub fn any<K>(&self) -> Api<DynamicObject>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        self.of(&ApiResource::erase::<K>(&()))
    }

    /// Objects of a kind without namespaces.
    fn anywhere<K>(&self) -> Api<DynamicObject>
    where
        K: Resource<Scope = ClusterResourceScope, DynamicType = ()>,
    {
        Api::all_with(self.client.clone(), &ApiResource::erase::<K>(&()))
    }

    fn of(&self, kind: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, kind)
    }

    /// The VM of this name, or nothing. A 404 about anything else (the cluster behind Rancher's proxy, the kind) is an
    /// error: upstream takes it for a removed VM (pitfalls-node-driver.md 1.2).
    ///
    /// # Errors
    /// As the server says.
    pub async fn vm(&self, name: &str) -> Result<Option<VirtualMachine>, Error> {
        let found = self.get(&ApiResource::erase::<VirtualMachine>(&()), "VM", name).await?;
        found.map(parse).transpose().map_err(|error| self.error("read", "VM", name, error))
    }

    /// The running instance of this name, or nothing.
    ///
    /// # Errors
    /// As the server says.
    pub async fn instance(&self, name: &str) -> Result<Option<VirtualMachineInstance>, Error> {
        let what = "instance of VM";
        let found = self.get(&ApiResource::erase::<VirtualMachineInstance>(&()), what, name).await?;
        found.map(parse).transpose().map_err(|error| self.error("read", what, name, error))
    }

    /// The Secret of this name, or nothing.
    ///
    /// # Errors
    /// As the server says.
    pub async fn secret(&self, name: &str) -> Result<Option<DynamicObject>, Error> {
        self.get(&ApiResource::erase::<Secret>(&()), "Secret", name).await
    }

    async fn get(
        &self,
        kind: &ApiResource,
        what: &'static str,
        name: &str,
    ) -> Result<Option<DynamicObject>, Error> {
        match self.of(kind).get(name).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error::is_about(&error, &kind.plural, name) => Ok(None),
            Err(error) => Err(self.error("read", what, name, error)),
        }
    }

    /// Makes the VM. The answer has its UID.
    ///
    /// # Errors
    /// As the server says; an error without an answer does not mean that nothing was made.
    pub async fn create_vm(&self, vm: &Value) -> Result<VirtualMachine, Error> {
        let made = self.create(&ApiResource::erase::<VirtualMachine>(&()), "VM", vm).await?;
        let name = made.name_any();
        parse(made).map_err(|error| self.error("make", "VM", &name, error))
    }

    /// Makes the Secret. The answer has its UID.
    ///
    /// # Errors
    /// As [`Host::create_vm`].
    pub async fn create_secret(&self, secret: &Value) -> Result<DynamicObject, Error> {
        self.create(&ApiResource::erase::<Secret>(&()), "Secret", secret).await
    }

    async fn create(
        &self,
        kind: &ApiResource,
        what: &'static str,
        object: &Value,
    ) -> Result<DynamicObject, Error> {
        let object: DynamicObject =
            serde_json::from_value(object.clone()).expect("our own objects have metadata");
        let made = self.of(kind).create(&PostParams::default(), &object).await;
        made.map_err(|error| self.error("make", what, &object.name_any(), error))
    }

    /// Deletes the VM of this UID; `Ok(false)` where it is gone already, or has another UID by now.
    ///
    /// # Errors
    /// As the server says.
    pub async fn delete_vm(&self, name: &str, uid: &str) -> Result<bool, Error> {
        self.delete(&ApiResource::erase::<VirtualMachine>(&()), "VM", name, uid).await
    }

    /// Deletes the Secret of this UID; the answer is that of [`Host::delete_vm`].
    ///
    /// # Errors
    /// As the server says.
    pub async fn delete_secret(&self, name: &str, uid: &str) -> Result<bool, Error> {
        self.delete(&ApiResource::erase::<Secret>(&()), "Secret", name, uid).await
    }

    /// Deletes the claim; the answer is that of [`Host::delete_vm`].
    ///
    /// # Errors
    /// As the server says.
    pub async fn delete_claim(&self, claim: &Claim) -> Result<bool, Error> {
        let Claim { name, uid, .. } = claim;
        self.delete(&ApiResource::erase::<PersistentVolumeClaim>(&()), "volume", name, uid).await
    }

    async fn delete(
        &self,
        kind: &ApiResource,
        what: &'static str,
        name: &str,
        uid: &str,
    ) -> Result<bool, Error> {
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Foreground),
            preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
            ..DeleteParams::default()
        };
        let error = match self.of(kind).delete(name, &params).await {
            Ok(_) => return Ok(true),
            Err(error) if error::is_about(&error, &kind.plural, name) => return Ok(false),
            Err(error) => self.error("delete", what, name, error),
        };
        // a conflict may be about the UID, or about anything else
        if error.is_taken() {
            let there = self.get(kind, what, name).await?;
            if there.is_none_or(|there| there.metadata.uid.as_deref() != Some(uid)) {
                return Ok(false);
            }
        }
        Err(error)
    }

    /// Sets one annotation of the VM with this UID; nothing else of it is touched (upstream writes the whole VM as it read it, and fails
    /// where somebody else wrote in between, pitfalls-node-driver.md B7). `Ok(false)` where the VM is gone.
    ///
    /// # Errors
    /// As the server says; also where another VM has the name.
    pub async fn annotate_vm(&self, name: &str, uid: &str, key: &str, value: &str) -> Result<bool, Error> {
        // the UID is a condition: another VM of that name answers 409
        let patch = json!({"metadata": {"uid": uid, "annotations": {key: value}}});
        let patched =
            self.any::<VirtualMachine>().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        self.written(name, patched)
    }

    /// The same in upstream's way, for a credential that has only upstream's rights: reads the VM, and writes it whole.
    /// `Ok(false)` where the VM is gone, or another one has its name.
    ///
    /// # Errors
    /// As the server says; a conflict where somebody else wrote in between.
    pub async fn rewrite_vm(&self, name: &str, uid: &str, key: &str, value: &str) -> Result<bool, Error> {
        let found = self.get(&ApiResource::erase::<VirtualMachine>(&()), "VM", name).await?;
        let Some(mut vm) = found.filter(|vm| vm.metadata.uid.as_deref() == Some(uid)) else {
            return Ok(false);
        };
        vm.annotations_mut().insert(key.to_owned(), value.to_owned());
        let put = self.any::<VirtualMachine>().replace(name, &PostParams::default(), &vm).await;
        self.written(name, put)
    }

    /// Whether the VM was there to be written. Only a 404 about itself says that it was not.
    fn written(&self, name: &str, answer: kube::Result<DynamicObject>) -> Result<bool, Error> {
        match answer {
            Ok(_) => Ok(true),
            Err(error) if error::is_about(&error, "virtualmachines", name) => Ok(false),
            Err(error) => Err(self.error("annotate", "VM", name, error)),
        }
    }

    /// Asks a VM to change its state.
    ///
    /// # Errors
    /// As the server says.
    pub async fn order(&self, name: &str, order: Order) -> Result<(), Error> {
        let (namespace, subresource) = (&self.namespace, order.subresource());
        let path = format!(
            "/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachines/{name}/{subresource}"
        );
        let mut request = Request::put(path);
        if order == Order::Kill {
            request = request.header(http::header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(order.body()).expect("names of machines are good in paths");
        self.client
            .request_text(request)
            .await
            .map(drop)
            .map_err(|error| self.error(subresource, "VM", name, error))
    }

    /// The Setting of Harvester with its version.
    ///
    /// # Errors
    /// As the server says.
    pub async fn server_version(&self) -> Result<ServerVersion, Error> {
        let api = Api::all_with(self.client.clone(), &harvester("Setting", "settings"));
        let found: DynamicObject = api
            .get(SERVER_VERSION)
            .await
            .map_err(|error| Error::new("read", "Setting", SERVER_VERSION, error))?;
        let value = found.data["value"].as_str().unwrap_or_default().to_owned();
        Ok(ServerVersion { value, uid: found.uid().unwrap_or_default() })
    }

    /// A VM image.
    ///
    /// # Errors
    /// As the server says, also where it is not there.
    pub async fn image(&self, at: &Reference) -> Result<DynamicObject, Error> {
        self.foreign("image", at, &harvester("VirtualMachineImage", "virtualmachineimages")).await
    }

    /// A key pair.
    ///
    /// # Errors
    /// As the server says, also where it is not there.
    pub async fn key_pair(&self, at: &Reference) -> Result<DynamicObject, Error> {
        self.foreign("KeyPair", at, &harvester("KeyPair", "keypairs")).await
    }

    /// A VM network.
    ///
    /// # Errors
    /// As the server says, also where it is not there.
    pub async fn network(&self, at: &Reference) -> Result<DynamicObject, Error> {
        let kind = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition");
        let resource = ApiResource::from_gvk_with_plural(&kind, "network-attachment-definitions");
        self.foreign("VM network", at, &resource).await
    }

    async fn foreign(
        &self,
        what: &'static str,
        at: &Reference,
        resource: &ApiResource,
    ) -> Result<DynamicObject, Error> {
        let api = Api::namespaced_with(self.client.clone(), &at.namespace, resource);
        api.get(&at.name).await.map_err(|error| Error::new("read", what, at, error))
    }

    /// A storage class.
    ///
    /// # Errors
    /// As the server says, also where it is not there.
    pub async fn storage_class(&self, name: &str) -> Result<DynamicObject, Error> {
        let api = self.anywhere::<StorageClass>();
        api.get(name).await.map_err(|error| Error::new("read", "storage class", name, error))
    }

    /// Harvester's own nodes.
    ///
    /// # Errors
    /// As the server says.
    pub async fn nodes(&self) -> Result<Vec<DynamicObject>, Error> {
        let listed = self.anywhere::<Node>().list(&ListParams::default()).await;
        Ok(listed.map_err(|error| Error::new("list", "hosts", "of Harvester", error))?.items)
    }

    /// The claim of this name, or nothing.
    ///
    /// # Errors
    /// As the server says.
    pub async fn claim(&self, name: &str) -> Result<Option<Claim>, Error> {
        let found = self.get(&ApiResource::erase::<PersistentVolumeClaim>(&()), "volume", name).await?;
        Ok(found.map(|claim| Claim::of(claim.metadata)))
    }

    /// The claims of the namespace with these labels; all, where none are given.
    ///
    /// # Errors
    /// As the server says.
    pub async fn claims(&self, labels: &str) -> Result<Vec<Claim>, Error> {
        let params = ListParams::default().labels(labels);
        let listed = self.any::<PersistentVolumeClaim>().list_metadata(&params).await;
        let of = format!("of namespace {} {labels}", self.namespace);
        let listed = listed.map_err(|error| Error::new("list", "volumes", of.trim_end(), error))?;
        Ok(listed.items.into_iter().map(|claim| Claim::of(claim.metadata)).collect())
    }

    /// Whether the namespace is there; where that may not be asked, it is.
    pub async fn has_namespace(&self) -> bool {
        let answer = self.anywhere::<Namespace>().get(&self.namespace).await;
        !answer.is_err_and(|error| error::is_about(&error, "namespaces", &self.namespace))
    }

    fn error(&self, verb: &'static str, what: &'static str, name: &str, source: kube::Error) -> Error {
        Error::new(verb, what, format_args!("{}/{name}", self.namespace), source)
    }
}

/// Harvester's Setting `server-version`. Harvester makes it once and keeps it, and whoever makes machines may read it: so
/// its UID tells one Harvester from another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerVersion {
    pub value: String,
    pub uid: String,
}

const SERVER_VERSION: &str = "server-version";

/// The VMs that use a claim, as Harvester writes them.
const OWNED_BY: &str = "harvesterhci.io/owned-by";

/// A claim, as far as its removal needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub name: String,
    pub uid: String,
    /// `namespace/name` of the VMs that use it.
    pub users: Vec<String>,
    pub is_being_deleted: bool,
}

impl Claim {
    fn of(metadata: ObjectMeta) -> Self {
        #[derive(Deserialize)]
        struct Users {
            #[serde(default)]
            refs: Vec<String>,
        }
        let users = metadata.annotations.unwrap_or_default().remove(OWNED_BY).unwrap_or_default();
        let users: Vec<Users> = serde_json::from_str(&users).unwrap_or_default();
        Self {
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            users: users.into_iter().flat_map(|users| users.refs).collect(),
            is_being_deleted: metadata.deletion_timestamp.is_some(),
        }
    }
}

/// An object as its kind.
fn parse<K: DeserializeOwned>(object: DynamicObject) -> kube::Result<K> {
    serde_json::to_value(object).and_then(serde_json::from_value).map_err(kube::Error::SerdeError)
}

fn harvester(kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("harvesterhci.io", "v1beta1", kind), plural)
}
