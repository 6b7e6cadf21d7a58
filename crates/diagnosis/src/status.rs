//! `status`: both clusters on one screen, from what [`crate::doctor`] reads. Pure.

pub mod cli;

use std::{collections::BTreeMap, fmt::Write as _};

use harvester_api::{annotations, names};
use serde::Serialize;
use serde_json::Value;

use crate::{
    doctor::{
        self, Finding, Occasion, Verdict,
        facts::{Answer, Facts},
        read,
    },
    json::{self, annotation, condition, is_deleted, is_true, key, members, name, text, uid},
    screen::cut,
    screen::{Colour, table},
    whose::{machine_of, service_of},
};

/// So many lines of a table are shown; JSON has all.
const ROWS: usize = 15;

/// One Service of type LoadBalancer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRow {
    /// Those without address are shown first.
    pub is_served: bool,
    pub name: String,
    pub addresses: Vec<String>,
    /// Of its LoadBalancer object in Harvester; empty without one.
    pub object: String,
    /// What it waits for.
    pub because: String,
}

/// One Node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRow {
    pub is_ready: bool,
    pub name: String,
    /// Its VirtualMachine, and how Harvester says that this is.
    pub machine: Option<String>,
    pub state: String,
}

/// One IPPool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolRow {
    pub available: i64,
    pub name: String,
    pub total: i64,
}

/// The shape of `--output json`. Fields may be added; none is renamed or taken away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub guest: String,
    pub harvester: String,
    /// How many checks of `doctor` are green.
    pub green: usize,
    /// Those that are amber or red.
    pub findings: Vec<Finding>,
    pub services: Vec<ServiceRow>,
    pub nodes: Vec<NodeRow>,
    pub pools: Vec<PoolRow>,
    /// Lists that could not be read: what they would show is missing above.
    pub not_read: Vec<String>,
    /// The tables whose list could not be read, or was not asked for.
    #[serde(skip)]
    unknown: Vec<&'static str>,
}

const SERVICES: &str = "Services";
const NODES: &str = "Nodes";
const POOLS: &str = "Pools";

/// What is on the screen.
pub fn decide(facts: &Facts) -> Status {
    let findings = doctor::decide(facts, Occasion::Daily);
    let of =
        |id: &str| findings.iter().find(|finding| finding.id == id).map_or("", |finding| &finding.sentence);
    let guest = format!("{}; controllers: {}", of("guest-api"), of("ccm"));
    let harvester = match &facts.config {
        Ok(config) => {
            format!("{}, namespace {}; {}", config.server, config.namespace, of("harvester-version"))
        }
        Err(why) => why.clone(),
    };
    let (mut not_read, mut unknown) = (Vec::new(), Vec::new());
    let mut items =
        |table: Option<&'static str>, cluster: &str, answers: &BTreeMap<String, Answer>, path: &str| {
            match answers.get(path) {
                Some(Ok(list)) => return json::items_or_none(list).to_vec(),
                Some(Err(failed)) => {
                    not_read.push(cut(&format!("{cluster}: GET {path} failed: {}", failed.why)));
                }
                None => {}
            }
            unknown.extend(table);
            Vec::new()
        };
    let namespace = facts.config.as_ref().map(|config| config.namespace.clone()).unwrap_or_default();
    let [services, nodes] = [(SERVICES, read::SERVICES), (NODES, read::NODES)]
        .map(|(table, path)| items(Some(table), "guest", &facts.guest.answers, path));
    let harvesters = [
        (None, read::balancers(&namespace)),
        (None, read::machines(&namespace)),
        (Some(POOLS), read::POOLS.to_owned()),
    ];
    let [balancers, machines, pools] =
        harvesters.map(|(table, path)| items(table, "Harvester", &facts.harvester.answers, &path));
    let mut services: Vec<_> =
        services.iter().filter(|it| is_balanced(it)).map(|it| service(it, &balancers)).collect();
    let mut nodes: Vec<_> = nodes.iter().map(|it| node(it, &machines)).collect();
    let mut pools: Vec<_> = pools.iter().map(pool).collect();
    services.sort_unstable();
    nodes.sort_unstable();
    pools.sort_unstable();
    let green = findings.iter().filter(|finding| finding.verdict == Verdict::Green).count();
    let is_told = |finding: &Finding| matches!(finding.verdict, Verdict::Amber | Verdict::Red);
    let (guest, harvester) = (cut(&guest), cut(&harvester));
    let findings = findings.into_iter().filter(is_told).collect();
    Status { guest, harvester, green, findings, services, nodes, pools, not_read, unknown }
}

fn is_balanced(service: &Value) -> bool {
    let class = service["spec"]["loadBalancerClass"].as_str();
    text(service, "/spec/type") == "LoadBalancer" && class.is_none_or(|it| it == names::LOAD_BALANCER_CLASS)
}

fn service(service: &Value, balancers: &[Value]) -> ServiceRow {
    let entries = members(&service["status"]["loadBalancer"]["ingress"]);
    let shown = |entry: &Value| entry["ip"].as_str().or_else(|| entry["hostname"].as_str()).map(cut);
    let addresses: Vec<_> = entries.iter().filter_map(shown).collect();
    let is_its = |object: &&Value| match annotation(object, annotations::SERVICE_UID) {
        Some(of) => of == uid(service),
        None => service_of(object) == key(service),
    };
    let object = balancers.iter().find(is_its);
    let because = match object.and_then(|object| condition(object, "Ready")) {
        _ if is_deleted(service) => "it is being deleted".to_owned(),
        _ if !addresses.is_empty() => String::new(),
        Some(ready) => cut(text(ready, "/message")),
        None if object.is_some() => "its LoadBalancer says nothing yet".to_owned(),
        None => "it has no LoadBalancer in Harvester".to_owned(),
    };
    let object = object.map(|object| cut(name(object))).unwrap_or_default();
    ServiceRow { is_served: !addresses.is_empty(), name: cut(&key(service)), addresses, object, because }
}

fn node(node: &Value, machines: &[Value]) -> NodeRow {
    let machine = machine_of(node, machines);
    NodeRow {
        is_ready: is_true(node, "Ready"),
        name: cut(name(node)),
        machine: machine.map(|machine| cut(name(machine))),
        state: machine.map(|machine| cut(text(machine, "/status/printableStatus"))).unwrap_or_default(),
    }
}

fn pool(pool: &Value) -> PoolRow {
    let count = |field: &str| pool["status"][field].as_i64().unwrap_or_default();
    PoolRow { available: count("available"), name: cut(name(pool)), total: count("total") }
}

/// The screen, as lines.
pub fn render(status: &Status, colour: Colour) -> String {
    let mut page = format!("Guest      {}\nHarvester  {}\n", status.guest, status.harvester);
    let red = status.findings.iter().filter(|finding| finding.verdict == Verdict::Red).count();
    let amber = status.findings.len() - red;
    let told = format!("{} green, {amber} amber, {red} red", status.green);
    let told = if red > 0 { colour.red(&told) } else { colour.green(&told) };
    add(&mut page, &format!("Checks     {told}"));
    for finding in &status.findings {
        let word = if finding.verdict == Verdict::Red { colour.red("red  ") } else { colour.amber("amber") };
        add(&mut page, &format!("  {word} {}: {}", finding.id, finding.sentence));
        finding.mend.iter().for_each(|mend| add(&mut page, &format!("        → {mend}")));
    }
    let services = status.services.iter().map(|row| {
        let addresses = if row.is_served { row.addresses.join(", ") } else { "waits".to_owned() };
        [row.name.clone(), addresses, row.object.clone(), row.because.clone()]
    });
    let none = |table: &'static str| {
        format!("{table}: {}", if status.unknown.contains(&table) { "not read" } else { "none" })
    };
    let heads = ["SERVICE", "ADDRESS", "LOADBALANCER", "BECAUSE"];
    page += &section(&none(SERVICES), heads, services.collect());
    let nodes = status.nodes.iter().map(|row| {
        let ready = if row.is_ready { "ready" } else { "not ready" };
        [row.name.clone(), ready.to_owned(), row.machine.clone().unwrap_or("-".to_owned()), row.state.clone()]
    });
    page += &section(&none(NODES), ["NODE", "KUBELET", "VM", "STATE"], nodes.collect());
    let pools =
        status.pools.iter().map(|row| [row.name.clone(), format!("{} of {}", row.available, row.total)]);
    page += &section(&none(POOLS), ["POOL", "FREE"], pools.collect());
    status.not_read.iter().for_each(|why| add(&mut page, &format!("not read: {why}")));
    page
}

fn add(page: &mut String, line: &str) {
    writeln!(page, "{line}").expect("a String takes any text");
}

/// A table, or the line in place of one that has no rows.
fn section<const N: usize>(none: &str, heads: [&str; N], rows: Vec<[String; N]>) -> String {
    if rows.is_empty() { format!("\n{none}\n") } else { format!("\n{}", table(heads, rows, ROWS)) }
}

#[cfg(test)]
mod tests;
