//! The search for the VM of a Node that no watch knows: one whose VM lacks the cluster's label and has another name.
//!
//! For a Node that has the UID of a VM all VMs of the namespace are listed, as metadata: the one with the UID is watched
//! by its name from then on, and a Node whose VM is nowhere may be removed. For another Node the instances without label
//! are listed, and the guest agents of those that have one are asked for their host names. Nothing tells of these VMs,
//! so the search is repeated while a Node is unknown, and what it found is forgotten when none is.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use controller_kit::Cache;
use harvester_api::{VirtualMachine, VirtualMachineInstance, labels, names::PROVIDER_ID_PREFIX};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Client, Resource, ResourceExt,
    api::ListParams,
    core::{ListMeta, Request},
};
use program::TaskGroup;
use serde::Deserialize;
use serde_json::Value;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use crate::{
    GuestVms,
    directory::{Searched, is_uid},
    host_names::is_agent,
    other_owners::is_externally_managed,
    vm_state::vm_id,
    vms::provider_id,
};

/// While a Node is unknown, its VM is searched for again after this time.
const SEARCH_AGAIN: Duration = Duration::from_secs(600);
/// A list that failed is tried again after this time.
const SEARCH_FAILED: Duration = Duration::from_secs(30);
/// After a search that worked, the next one for other Nodes waits so long: who makes Nodes without end would have the
/// namespace listed without end.
const SEARCH_NEXT: Duration = Duration::from_secs(5);
/// Objects in one answer of the server: annotations of a quarter of a megabyte each make it 25 MiB.
const PAGE: u32 = 100;

pub(crate) struct Search {
    client: Client,
    vms: GuestVms,
    nodes: Cache<Node>,
}

/// Which unknown Nodes were searched for, and when to search again.
#[derive(Debug, Default)]
struct Schedule {
    searched: BTreeSet<String>,
    not_before: Option<Instant>,
    again: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Now,
    At(Instant),
    /// When there is an unknown Node.
    Never,
}

impl Schedule {
    fn due(&mut self, unknown: &BTreeSet<String>, now: Instant) -> Due {
        self.searched.retain(|node| unknown.contains(node));
        if unknown.is_empty() {
            return Due::Never;
        }
        let at = if *unknown == self.searched { self.again } else { self.not_before };
        at.filter(|at| *at > now).map_or(Due::Now, Due::At)
    }

    fn done(&mut self, unknown: BTreeSet<String>, worked: bool, now: Instant) {
        if worked {
            let (next, again) = (Some(now + SEARCH_NEXT), Some(now + SEARCH_AGAIN));
            *self = Self { searched: unknown, not_before: next, again };
        } else {
            let next = Some(now + SEARCH_FAILED);
            (self.not_before, self.again) = (next, next);
        }
    }
}

/// The parts of a list that are read here.
#[derive(Deserialize)]
struct Page {
    metadata: ListMeta,
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    metadata: ItemMeta,
    #[serde(default)]
    status: Option<ItemStatus>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ItemMeta {
    name: String,
    uid: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ItemStatus {
    conditions: Value,
}

impl Item {
    fn has_agent(&self) -> bool {
        let conditions = self.status.as_ref().and_then(|status| status.conditions.as_array());
        let text = |condition: &Value, field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        let mut all = conditions.into_iter().flatten();
        all.any(|condition| is_agent(&text(condition, "type"), &text(condition, "status")))
    }
}

impl Search {
    /// `ask` asks the guest agents of what was found for their host names, where that is wanted.
    pub(crate) fn start(
        tasks: &TaskGroup,
        client: &Client,
        vms: &GuestVms,
        nodes: &Cache<Node>,
        ask: Option<impl Fn() + Send + Sync + 'static>,
    ) {
        let search = Self { client: client.clone(), vms: vms.clone(), nodes: nodes.clone() };
        let changed = Arc::new(Notify::new());
        let wake = changed.clone();
        vms.on_change(move || wake.notify_one());
        let wake = changed.clone();
        nodes.on_change(move |change| {
            let facts = |node: &Option<Arc<Node>>| {
                node.as_ref().map(|node| (node.uid(), provider_id(node).to_owned(), node.labels().clone()))
            };
            if facts(&change.old) != facts(&change.new) {
                wake.notify_one();
            }
        });
        tasks.spawn_until_stop(async move {
            search.nodes.ready().await;
            search.vms.ready().await;
            let mut schedule = Schedule::default();
            loop {
                let unknown = search.unknown();
                if unknown.is_empty() && search.is_settled() && search.vms.directory().forget_strangers() {
                    // what they said is forgotten too
                    ask.iter().for_each(|ask| ask());
                }
                let keys: BTreeSet<_> = unknown.iter().map(|node| key(node)).collect();
                match schedule.due(&keys, Instant::now()) {
                    Due::Never => changed.notified().await,
                    Due::At(at) => tokio::select! {
                        () = sleep_until(at) => (),
                        () = changed.notified() => (),
                    },
                    Due::Now => {
                        let worked = search.search(&unknown, ask.as_ref()).await;
                        if let Err(error) = &worked {
                            let error = error as &dyn std::error::Error;
                            tracing::debug!(error, "the VMs of unknown nodes cannot be searched for");
                        }
                        schedule.done(keys, worked.is_ok(), Instant::now());
                    }
                }
            }
        });
    }

    /// The Nodes that may be VMs of this Harvester, and whose VM no watch knows.
    fn unknown(&self) -> Vec<Arc<Node>> {
        let is_unknown = |node: &Arc<Node>| {
            let id = provider_id(node);
            (id.is_empty() || id.starts_with(PROVIDER_ID_PREFIX))
                && !is_externally_managed(node)
                && self.vms.is_complete()
                && self.vms.is_settled(node)
                && self.vms.vm_of(node).is_none()
        };
        self.nodes.list().into_iter().filter(is_unknown).collect()
    }

    /// Whether every VM that some Node may be was looked at. Until then a Node may need what a search found: its VM is
    /// watched by the name that the guest agent gave, once that watch has begun.
    fn is_settled(&self) -> bool {
        self.vms.is_complete() && self.nodes.list().iter().all(|node| self.vms.is_settled(node))
    }

    async fn search(&self, unknown: &[Arc<Node>], ask: Option<&impl Fn()>) -> kube::Result<()> {
        let wanted: BTreeSet<_> =
            unknown.iter().filter_map(|node| vm_id(node)).filter(|id| is_uid(id)).collect();
        let mut searched = HashMap::new();
        if !wanted.is_empty() {
            searched = self.by_uid(&wanted).await?;
        }
        self.vms.directory().set_searched(searched);
        if let Some(ask) = ask
            && wanted.len() < unknown.len()
        {
            let strangers = self.strangers().await?;
            self.vms.directory().set_strangers(strangers);
            ask();
        }
        self.vms.shared().names.notify_one();
        self.vms.notify();
        Ok(())
    }

    /// What a list of all VMs, whatever their labels, says of these UIDs. Such a list proves absence only if it names
    /// VMs of other Nodes: a cloud-config may name another Harvester by now. It comes in pages, since the answer may be
    /// longer than the memory, and the cloud-config may change between two: what is of two states or servers fails.
    async fn by_uid(&self, wanted: &BTreeSet<&str>) -> kube::Result<HashMap<String, Searched>> {
        let nodes = self.nodes.list();
        let others: HashSet<_> = nodes.iter().filter_map(|node| vm_id(node)).collect();
        let (mut named, mut witness) = (HashMap::new(), None);
        let mut params = ListParams::default().limit(PAGE);
        let mut first: Option<ListMeta> = None;
        loop {
            let page = self.page_of_vms(&params).await?;
            for ItemMeta { name, uid } in page.items.into_iter().map(|item| item.metadata) {
                if name.is_empty() || uid.is_empty() {
                    continue;
                }
                if wanted.contains(&*uid) {
                    named.insert(uid, name);
                } else if others.contains(&*uid) {
                    witness = Some((name, uid));
                }
            }
            let version = |of: &ListMeta| of.resource_version.clone().filter(|version| !version.is_empty());
            if let Some(first) = &first
                && (version(first).is_none() || version(first) != version(&page.metadata))
            {
                return Err(kube::Error::Service("the pages of the list of VMs are of two states".into()));
            }
            let first = first.get_or_insert_with(|| page.metadata.clone());
            if let Some(token) = page.metadata.continue_.filter(|token| !token.is_empty()) {
                params = params.continue_token(&token);
                continue;
            }
            // the version is in the token: another server that takes the token says the same one
            if first.continue_.as_ref().is_some_and(|token| !token.is_empty())
                && let Some((name, uid)) = &witness
            {
                let again = ListParams::default().limit(1).fields(&format!("metadata.name={name}"));
                let page = self.page_of_vms(&again).await?;
                if !page.items.iter().any(|item| item.metadata.uid == *uid) {
                    let sentence = format!("VM {name} of the list of VMs is not there any more");
                    return Err(kube::Error::Service(sentence.into()));
                }
            }
            break;
        }
        let answer = |uid: &&str| match named.remove(*uid) {
            Some(name) => ((*uid).to_owned(), Searched::Named(name)),
            None if witness.is_some() => ((*uid).to_owned(), Searched::Missing),
            None => ((*uid).to_owned(), Searched::Doubtful),
        };
        Ok(wanted.iter().map(answer).collect())
    }

    /// Names and UIDs: an annotation may be as long as a quarter of a megabyte.
    async fn page_of_vms(&self, params: &ListParams) -> kube::Result<Page> {
        let url = VirtualMachine::url_path(&(), Some(&self.vms.shared().namespace));
        let request = Request::new(url).list_metadata(params).map_err(kube::Error::BuildRequest)?;
        self.client.request(request).await
    }

    /// The instances of no guest cluster that have a guest agent, by name and UID. Where labels name no owner, all.
    async fn strangers(&self) -> kube::Result<BTreeMap<String, String>> {
        let mut params = ListParams::default().limit(PAGE);
        if self.vms.directory().has_cluster() {
            params = params.labels(&format!("!{}", labels::GUEST_CLUSTER));
        }
        let url = VirtualMachineInstance::url_path(&(), Some(&self.vms.shared().namespace));
        let mut found = BTreeMap::new();
        loop {
            let request = Request::new(url.clone()).list(&params).map_err(kube::Error::BuildRequest)?;
            let page: Page = self.client.request(request).await?;
            let of_agents = page.items.into_iter().filter(Item::has_agent);
            found.extend(of_agents.map(|item| (item.metadata.name, item.metadata.uid)));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(found),
            }
        }
    }
}

/// A Node that is made again, or gets another provider ID, is another one to search for.
fn key(node: &Node) -> String {
    format!("{} {}", node.uid().unwrap_or_default(), provider_id(node))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::VmSettings;

    const WITNESS: &str = "00000000-0000-4000-8000-000000000001";
    const WANTED: &str = "00000000-0000-4000-8000-000000000002";

    const NOWHERE: &str = "00000000-0000-4000-8000-000000000003";

    /// What answers after the first page.
    #[derive(Clone, Copy)]
    enum Then {
        Same,
        /// Another Harvester, or the same one at another time.
        OtherVersion,
        /// One without VMs that takes the token, in which the version is.
        OtherServer,
    }

    /// Of these many VMs the first is the witness, and the last is wanted.
    fn harvester(vms: usize, then: Then, asked: &Arc<Mutex<Vec<String>>>) -> Client {
        let asked = asked.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            asked.lock().unwrap().push(query.clone());
            let of = |key: &str| query.split('&').find_map(|part| part.strip_prefix(key)?.strip_prefix('='));
            let number = |key: &str| of(key).and_then(|text| text.parse::<usize>().ok());
            let uid = |n: usize| match n {
                0 => WITNESS.to_owned(),
                n if n + 1 == vms => WANTED.to_owned(),
                n => format!("10000000-0000-4000-8000-{n:012}"),
            };
            let vm = |n: usize| json!({"metadata": {"name": format!("vm-{n}"), "uid": uid(n)}});
            let begin = number("continue").unwrap_or_default();
            let end = vms.min(begin + number("limit").unwrap_or(vms));
            let (is_first, by_name) = (begin == 0, of("fieldSelector"));
            let items: Vec<_> = match (then, by_name) {
                (Then::OtherServer, Some(_)) => vec![],
                (Then::OtherServer, None) if !is_first => vec![],
                (_, Some(name)) => (0..vms).filter(|n| name.ends_with(&format!("vm-{n}"))).map(vm).collect(),
                (_, None) => (begin..end).map(vm).collect(),
            };
            let token = if by_name.is_none() && end < vms { end.to_string() } else { String::new() };
            let version = if is_first || !matches!(then, Then::OtherVersion) { "7" } else { "8" };
            let list = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
                "metadata": {"resourceVersion": version, "continue": token}, "items": items});
            async move { Ok::<_, tower::BoxError>(Response::new(Body::from(list.to_string().into_bytes()))) }
        });
        Client::new(service, "team-a")
    }

    async fn found(client: Client) -> kube::Result<HashMap<String, Searched>> {
        let vms = GuestVms::of(&client, VmSettings::default(), Cache::of([]), Cache::of([]));
        let node = |uid: &str| {
            let json =
                json!({"metadata": {"name": uid}, "spec": {"providerID": format!("harvester://{uid}")}});
            serde_json::from_value(json).unwrap()
        };
        let search = Search { client, vms, nodes: Cache::of([node(WITNESS), node(WANTED)]) };
        search.by_uid(&BTreeSet::from([WANTED, NOWHERE])).await
    }

    #[rstest::rstest]
    #[case::in_one_page(2, 1)]
    #[case::in_three_pages_and_a_look_at_the_witness(240, 4)]
    #[tokio::test]
    async fn all_vms_are_listed_in_pages(#[case] vms: usize, #[case] requests: usize) {
        let asked = Arc::default();
        let found = found(harvester(vms, Then::Same, &asked)).await.unwrap();
        assert_eq!(found[WANTED], Searched::Named(format!("vm-{}", vms - 1)));
        assert_eq!(found[NOWHERE], Searched::Missing);
        let asked = asked.lock().unwrap();
        assert!(asked.len() == requests && asked.iter().all(|query| query.contains("limit=")), "{asked:?}");
    }

    #[rstest::rstest]
    #[tokio::test]
    async fn pages_of_two_states_or_servers_say_nothing(
        #[values(Then::OtherVersion, Then::OtherServer)] then: Then,
    ) {
        found(harvester(240, then, &Arc::default())).await.unwrap_err();
    }

    fn nodes(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_node_is_searched_for_once_and_every_ten_minutes_while_it_is_unknown() {
        let (mut schedule, start) = (Schedule::default(), Instant::now());
        assert_eq!(schedule.due(&nodes(&[]), start), Due::Never);
        assert_eq!(schedule.due(&nodes(&["a"]), start), Due::Now);
        schedule.done(nodes(&["a"]), true, start);
        assert_eq!(schedule.due(&nodes(&["a"]), start), Due::At(start + SEARCH_AGAIN));
        assert_eq!(schedule.due(&nodes(&["a"]), start + SEARCH_AGAIN), Due::Now);
        assert_eq!(schedule.due(&nodes(&["a", "b"]), start), Due::At(start + SEARCH_NEXT), "another one");
        assert_eq!(schedule.due(&nodes(&["a", "b"]), start + SEARCH_NEXT), Due::Now);
        schedule.done(nodes(&["a", "b"]), true, start);
        assert_eq!(schedule.due(&nodes(&["b"]), start), Due::At(start + SEARCH_AGAIN));
        assert_eq!(schedule.due(&nodes(&[]), start + SEARCH_AGAIN), Due::Never);
        assert_eq!(schedule.due(&nodes(&["b"]), start + SEARCH_NEXT), Due::Now, "it is unknown anew");
    }

    #[test]
    fn nodes_that_come_and_go_have_the_namespace_listed_no_more_often_than_the_pause_allows() {
        let (mut schedule, start) = (Schedule::default(), Instant::now());
        assert_eq!(schedule.due(&nodes(&["0"]), start), Due::Now, "the first waits for nothing");
        schedule.done(nodes(&["0"]), true, start);
        for n in 1..100 {
            assert_eq!(schedule.due(&nodes(&[]), start), Due::Never);
            assert_eq!(schedule.due(&nodes(&[&n.to_string()]), start), Due::At(start + SEARCH_NEXT));
        }
    }

    #[test]
    fn a_search_that_fails_is_repeated_after_a_while_whoever_waits_for_it() {
        let (mut schedule, start) = (Schedule::default(), Instant::now());
        schedule.done(nodes(&["a"]), false, start);
        assert_eq!(schedule.due(&nodes(&["a", "b"]), start), Due::At(start + SEARCH_FAILED));
        assert_eq!(schedule.due(&nodes(&["a"]), start + SEARCH_FAILED), Due::Now);
    }
}
