//! The rights of a table that a role does not grant: one line says them and what is off, and a metric counts them.

use std::sync::{Arc, Mutex};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

use super::{Capabilities, Right, answer::Tracked};

/// Rights that one line names; the metric has all.
const NAMED: usize = 6;

/// A right that a program asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    pub right: Right,
    /// What is so while it is refused; goes on after "without it".
    pub off: &'static str,
}

impl Need {
    pub const fn new(right: Right, off: &'static str) -> Self {
        Self { right, off }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Lacking {
    cluster: &'static str,
    verb: &'static str,
    resource: String,
}

/// The rights that are missing now, each as 1. Clones are the same metric.
#[derive(Clone, Debug, Default)]
pub struct RightsMissing(Family<Lacking, Gauge>);

impl RightsMissing {
    pub fn register(&self, registry: &mut Registry, name: &str) {
        registry.register(name, "Rights that a role does not grant, each as 1", self.0.clone());
    }

    /// Whether the role in this cluster does not grant the right.
    pub fn set(&self, cluster: &'static str, right: &Right, is_missing: bool) {
        let series = Lacking { cluster, verb: right.verb, resource: right.kind() };
        if is_missing {
            self.0.get_or_create(&series).set(1);
        } else {
            self.0.remove(&series);
        }
    }
}

/// Who needs rights, and who grants them.
#[derive(Clone, Debug)]
pub struct Needs {
    /// For the metric: "guest".
    pub cluster: &'static str,
    /// For people: "ClusterRole a of the guest cluster".
    pub role: String,
    pub all: Vec<Need>,
}

impl Needs {
    /// The rights to ask for.
    pub fn rights(&self) -> Vec<Right> {
        self.all.iter().map(|need| need.right.clone()).collect()
    }
}

impl Capabilities {
    /// Has `tell` say which of `needs` are refused, in one line, each time that one more is; `metric` shows them while they
    /// are. `self` must ask for them.
    pub fn tell_missing(
        &self,
        needs: Needs,
        metric: RightsMissing,
        tell: impl Fn(String) + Send + Sync + 'static,
    ) {
        let (told, shared) = (Mutex::new(Vec::new()), Arc::downgrade(&self.0));
        let look = Arc::new(move || {
            let Some(shared) = shared.upgrade() else { return };
            let refused = Self(shared);
            let (missing, granted): (Vec<_>, Vec<_>) =
                needs.all.iter().partition(|need| refused.is_refused(&need.right));
            // two rights may be one series
            granted.iter().for_each(|need| metric.set(needs.cluster, &need.right, false));
            missing.iter().for_each(|need| metric.set(needs.cluster, &need.right, true));
            let line = {
                let mut told = told.lock().expect("no panic while a line is made");
                news(&mut told, &missing, &needs.role)
            };
            if let Some(line) = line {
                tell(line);
            }
        });
        let looks = look.clone();
        self.on_change(move || looks());
        // what was answered before
        look();
    }

    fn is_refused(&self, right: &Right) -> bool {
        self.state().rights.get(right).is_some_and(Tracked::is_told)
    }
}

/// The line about what is missing; nothing where none of it is new.
fn news(told: &mut Vec<Right>, missing: &[&Need], role: &str) -> Option<String> {
    let is_news = missing.iter().any(|need| !told.contains(&need.right));
    *told = missing.iter().map(|need| need.right.clone()).collect();
    is_news.then(|| line(missing, role))
}

fn line(missing: &[&Need], role: &str) -> String {
    let each = |need: &&Need| format!("{} (without it {})", need.right, need.off);
    let mut named: Vec<_> = missing.iter().take(NAMED).map(each).collect();
    if let Some(more @ 1..) = missing.len().checked_sub(NAMED) {
        named.push(format!("{more} more, which the metric of missing rights has"));
    }
    format!("{role} does not grant {}; grant it: it is asked for every 30 s", named.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: Need = Need::new(Right::new("list", "", "nodes"), "no Node is known");
    const PATCH: Need = Need::new(Right::new("patch", "", "nodes"), "no Node is labelled");

    #[test]
    fn a_line_names_all_that_is_missing_each_time_that_more_is() {
        let mut told = vec![];
        let mut say = |missing: &[&Need]| news(&mut told, missing, "Role a");
        assert_eq!(say(&[]), None);
        let first = "Role a does not grant list nodes (without it no Node is known); grant it: it is asked for every 30 s";
        assert_eq!(say(&[&LIST]).as_deref(), Some(first));
        assert_eq!(say(&[&LIST]), None);
        let both = say(&[&LIST, &PATCH]).unwrap();
        assert!(both.contains("is known); patch nodes (without it no Node is labelled)"), "{both}");
        assert_eq!(say(&[&PATCH]), None, "one came back");
        assert_eq!(say(&[]), None);
        assert!(say(&[&PATCH]).is_some(), "it went again");
    }

    #[test]
    fn a_line_stays_short_and_counts_the_rest() {
        let verbs = ["get", "list", "watch", "create", "update", "patch", "delete", "bind"];
        let needs: Vec<_> =
            verbs.iter().map(|verb| Need::new(Right::new(verb, "", "pods"), "it is off")).collect();
        let line = line(&needs.iter().collect::<Vec<_>>(), "Role a");
        assert!(line.contains("patch pods (without it it is off); 2 more, "), "{line}");
        assert!(!line.contains("delete pods"), "{line}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_is_told_and_shown_until_it_is_granted() {
        let capabilities = Capabilities::assumed([]);
        let (lines, metric) = (Arc::new(Mutex::new(Vec::new())), RightsMissing::default());
        let needs = Needs { cluster: "guest", role: "Role a".into(), all: vec![LIST, PATCH] };
        let into = lines.clone();
        capabilities.tell_missing(needs, metric.clone(), move |line| into.lock().unwrap().push(line));
        let shown = || {
            let mut registry = Registry::default();
            metric.register(&mut registry, "rights_missing");
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            text.contains(r#"rights_missing{cluster="guest",verb="patch",resource="nodes"} 1"#)
        };
        assert!(!shown());
        capabilities.refused(&PATCH.right);
        assert!(shown());
        let told = lines.lock().unwrap().clone();
        assert!(
            told.len() == 1 && told[0].contains("patch nodes") && !told[0].contains("list nodes"),
            "{told:?}"
        );
        capabilities.update(|state| state.rights.clear());
        assert!(!shown());
        assert_eq!(lines.lock().unwrap().len(), 1);
    }
}
