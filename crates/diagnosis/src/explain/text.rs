//! The report for people: a headline, then the chain from the Service to its traffic.

use std::fmt::Write as _;

use super::{
    decide::OF_LOAD_BALANCER,
    report::{Address, Report},
};

/// A table shows so many rows; JSON has all.
const ROWS: usize = 20;

/// The text, with a line break at its end.
pub fn render(report: &Report) -> String {
    let mut page = Page::default();
    page.line("", &capitalised(&report.headline));
    page.gap();
    page.line("Class", &report.class.sentence);
    if let Some(sharing) = &report.sharing {
        page.line("Sharing", &sharing.sentence);
    }
    if let Some(path) = &report.data_path {
        page.line("Data path", &format!("{}, {}", path.path, path.because));
        page.line("", &path.change);
    }
    page.line("Object", &report.object.sentence);
    if let Some(ready) = &report.object.ready {
        let since = if ready.since.is_empty() { String::new() } else { format!(" since {}", ready.since) };
        let reason = if ready.reason.is_empty() { String::new() } else { format!(", {}", ready.reason) };
        let message = if ready.message.is_empty() { String::new() } else { format!(": {}", ready.message) };
        page.line("", &format!("Ready is {}{reason}{since}{message}", ready.status));
    }
    if !report.object.secondaries.is_empty() {
        page.line("", &format!("its address is shared with {}", report.object.secondaries.join(", ")));
    }
    let condition = report.object.ready.as_ref().map(|ready| ready.message.as_str());
    address(&mut page, &report.address, condition.unwrap_or_default());
    page.line("Traffic", &report.traffic.sentence);
    let nodes = report.traffic.nodes.iter().map(|node| {
        let eligible = if node.eligible { "yes" } else { "no" };
        [
            node.name.clone(),
            eligible.to_owned(),
            node.vm.clone().unwrap_or("-".to_owned()),
            node.because.to_owned(),
        ]
    });
    page.table(["NODE", "BACKEND", "VM", "FOUND"], nodes);
    let backends = report.traffic.backends.iter().map(|backend| {
        let ready = if backend.ready { "yes" } else { "no" };
        let why = if backend.last_error.is_empty() { "-" } else { &backend.last_error };
        [backend.name.clone(), backend.address.clone(), ready.to_owned(), why.to_owned()]
    });
    page.table(["VM", "ADDRESS", "READY", "LAST ERROR"], backends);
    page.line("Controller", &report.controller.sentence);
    if !report.controller.due.is_empty() {
        let due = report.controller.due.join(", then it ");
        page.line("", &format!("due, if its flags are those below: it {due}"));
    }
    if let Some(until) = &report.waits_until {
        page.line("Waits until", until);
    }
    let findings = report.findings.iter();
    page.list("Findings", findings.map(|it| format!("{} {}: {}", it.event_type, it.reason, it.message)));
    let events = report.events.iter();
    page.list(
        "Events",
        events.map(|event| {
            let count = if event.count > 1 { format!(" (x{})", event.count) } else { String::new() };
            let is_above = report.findings.iter().any(|finding| finding.message == event.message);
            let message = if is_above { "as above" } else { &event.message };
            format!("{} ago{count} {} {}: {message}", event.age, event.event_type, event.reason)
        }),
    );
    page.list(
        "Not read",
        report.not_read.iter().map(|refused| {
            let place =
                refused.namespace.as_ref().map(|it| format!(" in namespace {it}")).unwrap_or_default();
            format!("{} {}{place}, {}: {}", refused.verb, refused.resource, refused.cluster, refused.why)
        }),
    );
    let (of_balancer, flags): (Vec<_>, Vec<_>) =
        report.flags.iter().partition(|(name, _)| OF_LOAD_BALANCER.contains(name));
    let text = |flags: Vec<(&&str, &String)>| -> Vec<_> {
        flags.into_iter().map(|(name, value)| format!("--{name}={value}")).collect()
    };
    page.line("Assumed", &format!("a cloud controller manager with {}", text(flags).join(" ")));
    if !of_balancer.is_empty() {
        page.line("", &format!("a load balancer in Harvester with {}", text(of_balancer).join(" ")));
    }
    page.0
}

/// `condition`: the message of the object's condition, which stands above.
fn address(page: &mut Page, address: &Address, condition: &str) {
    let is_above = address.sentence.strip_prefix("none: ") == Some(condition);
    page.line("Address", if is_above { "none: the pools say the same" } else { &address.sentence });
    for other in &address.depends {
        page.line("", other);
    }
    if !address.asked.is_empty() {
        page.line("", &format!("asked for: {}", address.asked.join("; ")));
    }
    if let Some(requirement) = &address.requirement {
        page.line("", &format!("a pool must match {requirement}"));
    }
    let rows = address.pools.iter().flatten().map(|pool| {
        let free = format!("{} of {}", pool.available, pool.total);
        [pool.name.clone(), free, pool.verdict.to_owned(), pool.sentence.clone()]
    });
    page.table(["POOL", "FREE", "ANSWER", "BECAUSE"], rows);
}

/// Lines with a title in front.
#[derive(Default)]
struct Page(String);

/// Width of the titles.
const TITLE: usize = 13;

impl Page {
    fn line(&mut self, title: &str, text: &str) {
        if text.is_empty() {
            return;
        }
        let width = if self.0.is_empty() { 0 } else { TITLE };
        writeln!(self.0, "{title:<width$}{text}").expect("a String takes any text");
    }

    fn gap(&mut self) {
        self.0.push('\n');
    }

    fn list(&mut self, title: &str, items: impl Iterator<Item = String>) {
        for (number, item) in items.enumerate() {
            self.line(if number == 0 { title } else { "" }, &item);
        }
    }

    fn table<const N: usize>(&mut self, heads: [&str; N], rows: impl Iterator<Item = [String; N]>) {
        let rows: Vec<[String; N]> = rows.collect();
        if rows.is_empty() {
            return;
        }
        let shown = &rows[..rows.len().min(ROWS)];
        let widths: [usize; N] = std::array::from_fn(|column| {
            let cells = shown.iter().map(|row| row[column].chars().count());
            cells.chain([heads[column].len()]).max().unwrap_or_default()
        });
        let mut print = |cells: [&str; N]| {
            let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
            let line = padded.collect::<Vec<_>>().join("  ");
            self.line("", &format!("  {}", line.trim_end()));
        };
        print(heads);
        for row in shown {
            print(std::array::from_fn(|column| row[column].as_str()));
        }
        if rows.len() > ROWS {
            self.line("", &format!("  and {} more: --output json has all", rows.len() - ROWS));
        }
    }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
