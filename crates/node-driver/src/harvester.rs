//! The requests that the driver sends to Harvester's API.

mod answer;
mod error;
pub(crate) mod follow;
mod pools;

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

use harvester_api::{VirtualMachine, VirtualMachineInstance, annotations};

use crate::reference::Reference;
pub(crate) use error::{Error, mask_not_found};

/// Access to one namespace of a Harvester cluster. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Harvester {
    client: Client,
    server: String,
    namespace: String,
}

/// A change of a VM's state, by a subresource of KubeVirt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VmAction {
    Start,
    Stop,
    /// Stop without a grace period.
    Kill,
    Restart,
}

impl VmAction {
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

impl Harvester {
    /// `server` is the address of the API, for messages.
    pub(crate) fn new(client: Client, server: &str, namespace: &str) -> Self {
        let (server, namespace) = (server.to_owned(), namespace.to_owned());
        Self { client: answer::limited(client), server, namespace }
    }

    /// Address of the API.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Objects of a kind in the machine's namespace, untyped: so the watches are compiled once for all kinds.
    pub(crate) fn any<K>(&self) -> Api<DynamicObject>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        self.of(&ApiResource::erase::<K>(&()))
    }

    /// Objects of a cluster-scoped kind.
    fn anywhere<K>(&self) -> Api<DynamicObject>
    where
        K: Resource<Scope = ClusterResourceScope, DynamicType = ()>,
    {
        Api::all_with(self.client.clone(), &ApiResource::erase::<K>(&()))
    }

    fn of(&self, kind: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, kind)
    }

    /// Reads the VM. Only a 404 that names this VM means that it is absent; one about anything else (the cluster behind
    /// Rancher's proxy, the kind) is an error. Upstream takes each for a removed VM (docs/contract/node-driver.md#1.2).
    ///
    /// # Errors
    /// As the server says.
    pub(crate) async fn vm(&self, name: &str) -> Result<Option<VirtualMachine>, Error> {
        let found = self.get(&ApiResource::erase::<VirtualMachine>(&()), "VM", name).await?;
        found.map(parse).transpose().map_err(|error| self.error("read", "VM", name, error))
    }

    /// Reads the VM's instance.
    ///
    /// # Errors
    /// As the server says.
    pub(crate) async fn instance(&self, name: &str) -> Result<Option<VirtualMachineInstance>, Error> {
        let what = "instance of VM";
        let found = self.get(&ApiResource::erase::<VirtualMachineInstance>(&()), what, name).await?;
        found.map(parse).transpose().map_err(|error| self.error("read", what, name, error))
    }

    /// Reads a Secret.
    ///
    /// # Errors
    /// As the server says.
    pub(crate) async fn secret(&self, name: &str) -> Result<Option<DynamicObject>, Error> {
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

    /// Creates the VM.
    ///
    /// # Errors
    /// As the server says. After an error without an answer the VM may exist.
    pub(crate) async fn create_vm(&self, vm: &Value) -> Result<VirtualMachine, Error> {
        let made = self.create(&ApiResource::erase::<VirtualMachine>(&()), "VM", vm).await?;
        let name = made.name_any();
        parse(made).map_err(|error| self.error("make", "VM", &name, error))
    }

    /// Creates the Secret.
    ///
    /// # Errors
    /// As [`Harvester::create_vm`].
    pub(crate) async fn create_secret(&self, secret: &Value) -> Result<DynamicObject, Error> {
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

    /// Deletes the VM of this UID. `Ok(false)`: it is gone, or another VM has its name.
    ///
    /// # Errors
    /// As the server says.
    pub(crate) async fn delete_vm(&self, name: &str, uid: &str) -> Result<bool, Error> {
        self.delete(&ApiResource::erase::<VirtualMachine>(&()), "VM", name, uid).await
    }

    /// Deletes the Secret of this UID; the answer is that of [`Harvester::delete_vm`].
    ///
    /// # Errors
    /// As the server says.
    pub(crate) async fn delete_secret(&self, name: &str, uid: &str) -> Result<bool, Error> {
        self.delete(&ApiResource::erase::<Secret>(&()), "Secret", name, uid).await
    }

    /// Deletes the claim; the answer is that of [`Harvester::delete_vm`].
    ///
    /// # Errors
    /// As the server says.
    pub(crate) async fn delete_claim(&self, claim: &Claim) -> Result<bool, Error> {
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
        // a conflict is about the UID, or about anything else
        if error.is_taken() {
            let there = self.get(kind, what, name).await?;
            if there.is_none_or(|there| there.metadata.uid.as_deref() != Some(uid)) {
                return Ok(false);
            }
        }
        Err(error)
    }

    /// Sets one annotation of the VM with this UID by a patch. Upstream writes the whole VM, and fails where somebody else
    /// wrote in between (docs/contract/node-driver.md#B7). `Ok(false)`: the VM is gone.
    ///
    /// # Errors
    /// As the server says; also where another VM has the name.
    pub(crate) async fn annotate_vm(
        &self,
        name: &str,
        uid: &str,
        key: &str,
        value: &str,
    ) -> Result<bool, Error> {
        // the UID is a condition: the server answers 409 if another VM has the name
        let patch = json!({"metadata": {"uid": uid, "annotations": {key: value}}});
        let patched =
            self.any::<VirtualMachine>().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        self.written(name, patched)
    }

    /// Sets the annotation as upstream does, for a credential with upstream's rights: reads the VM, and writes it whole.
    /// `Ok(false)`: the VM is gone, or another VM has its name.
    ///
    /// # Errors
    /// As the server says; a conflict where somebody else wrote in between.
    pub(crate) async fn rewrite_vm(
        &self,
        name: &str,
        uid: &str,
        key: &str,
        value: &str,
    ) -> Result<bool, Error> {
        let found = self.get(&ApiResource::erase::<VirtualMachine>(&()), "VM", name).await?;
        let Some(mut vm) = found.filter(|vm| vm.metadata.uid.as_deref() == Some(uid)) else {
            return Ok(false);
        };
        vm.annotations_mut().insert(key.to_owned(), value.to_owned());
        let put = self.any::<VirtualMachine>().replace(name, &PostParams::default(), &vm).await;
        self.written(name, put)
    }

    /// Whether the write reached the VM. Only a 404 that names the VM means that it is gone.
    fn written(&self, name: &str, answer: kube::Result<DynamicObject>) -> Result<bool, Error> {
        match answer {
            Ok(_) => Ok(true),
            Err(error) if error::is_about(&error, "virtualmachines", name) => Ok(false),
            Err(error) => Err(self.error("annotate", "VM", name, error)),
        }
    }

    /// Requests a change of the VM's state.
    ///
    /// # Errors
    /// As the server says.
    pub(crate) async fn act(&self, name: &str, action: VmAction) -> Result<(), Error> {
        let (namespace, subresource) = (&self.namespace, action.subresource());
        let path = format!(
            "/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachines/{name}/{subresource}"
        );
        let mut request = Request::put(path);
        if action == VmAction::Kill {
            request = request.header(http::header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(action.body()).expect("names of machines are good in paths");
        self.client
            .request_text(request)
            .await
            .map(drop)
            .map_err(|error| self.error(subresource, "VM", name, error))
    }

    /// Reads the Setting `server-version`.
    ///
    /// # Errors
    /// As the server says.
    pub(crate) async fn server_version(&self) -> Result<ServerVersion, Error> {
        let api = Api::all_with(self.client.clone(), &harvester_resource("Setting", "settings"));
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
    pub(crate) async fn image(&self, at: &Reference) -> Result<DynamicObject, Error> {
        self.foreign("image", at, &harvester_resource("VirtualMachineImage", "virtualmachineimages")).await
    }

    /// A key pair.
    ///
    /// # Errors
    /// As the server says, also where it is not there.
    pub(crate) async fn key_pair(&self, at: &Reference) -> Result<DynamicObject, Error> {
        self.foreign("KeyPair", at, &harvester_resource("KeyPair", "keypairs")).await
    }

    /// A VM network.
    ///
    /// # Errors
    /// As the server says, also where it is not there.
    pub(crate) async fn network(&self, at: &Reference) -> Result<DynamicObject, Error> {
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
    pub(crate) async fn storage_class(&self, name: &str) -> Result<DynamicObject, Error> {
        let api = self.anywhere::<StorageClass>();
        api.get(name).await.map_err(|error| Error::new("read", "storage class", name, error))
    }

    /// Harvester's own nodes.
    ///
    /// # Errors
    /// As the server says.
    pub(crate) async fn nodes(&self) -> Result<Vec<DynamicObject>, Error> {
        let listed = self.anywhere::<Node>().list(&ListParams::default()).await;
        Ok(listed.map_err(|error| Error::new("list", "hosts", "of Harvester", error))?.items)
    }

    /// Reads a claim.
    ///
    /// # Errors
    /// As the server says.
    pub(crate) async fn claim(&self, name: &str) -> Result<Option<Claim>, Error> {
        let found = self.get(&ApiResource::erase::<PersistentVolumeClaim>(&()), "volume", name).await?;
        Ok(found.map(|claim| Claim::of(claim.metadata)))
    }

    /// Lists the claims of the namespace with these labels; all claims for an empty selector.
    ///
    /// # Errors
    /// As the server says.
    pub(crate) async fn claims(&self, labels: &str) -> Result<Vec<Claim>, Error> {
        let params = ListParams::default().labels(labels);
        let listed = self.any::<PersistentVolumeClaim>().list_metadata(&params).await;
        let of = format!("of namespace {} {labels}", self.namespace);
        let listed = listed.map_err(|error| Error::new("list", "volumes", of.trim_end(), error))?;
        Ok(listed.items.into_iter().map(|claim| Claim::of(claim.metadata)).collect())
    }

    /// Whether the namespace exists. If the credential may not ask, it does.
    pub(crate) async fn has_namespace(&self) -> bool {
        let answer = self.anywhere::<Namespace>().get(&self.namespace).await;
        !answer.is_err_and(|error| error::is_about(&error, "namespaces", &self.namespace))
    }

    fn error(&self, verb: &'static str, what: &'static str, name: &str, source: kube::Error) -> Error {
        Error::new(verb, what, format_args!("{}/{name}", self.namespace), source)
    }
}

/// Harvester's Setting `server-version`. Its UID identifies a Harvester: Harvester creates the Setting once and keeps it,
/// and upstream's driver needs the right to read it too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerVersion {
    pub value: String,
    pub uid: String,
}

const SERVER_VERSION: &str = "server-version";

/// The part of a claim that a removal needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
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
        let users =
            metadata.annotations.unwrap_or_default().remove(annotations::OWNED_BY).unwrap_or_default();
        let users: Vec<Users> = serde_json::from_str(&users).unwrap_or_default();
        Self {
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            users: users.into_iter().flat_map(|users| users.refs).collect(),
            is_being_deleted: metadata.deletion_timestamp.is_some(),
        }
    }
}

/// Reads an untyped object as its kind.
fn parse<K: DeserializeOwned>(object: DynamicObject) -> kube::Result<K> {
    serde_json::to_value(object).and_then(serde_json::from_value).map_err(kube::Error::SerdeError)
}

fn harvester_resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("harvesterhci.io", "v1beta1", kind), plural)
}
