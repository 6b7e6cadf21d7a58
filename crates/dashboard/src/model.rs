//! What the page shows, as rows of JSON under names, and what of it a page does not know yet.
//!
//! Every change gives its row the next version. A page is told what has a later version than the last one that it was
//! sent, in the order of versions and a part at a time: so nothing is queued for a page, however slow it is, and a row
//! that changed ten times meanwhile is sent once. Rows that went are remembered, [`REMEMBERED`] of them; a page that
//! missed one of those before begins anew.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    ops::Bound,
    sync::Arc,
};

/// Rows that went, for pages that were told of them.
const REMEMBERED: usize = 1_000;

/// A row: its name, and its JSON.
pub(crate) type Row = (String, String);

/// The rows of the page.
#[derive(Debug, Default)]
pub(crate) struct Model {
    rows: BTreeMap<Arc<str>, Versioned>,
    /// The names of rows by the version of their last change.
    log: BTreeMap<u64, Arc<str>>,
    /// The versions in `log` at which a row went, oldest first.
    removals: VecDeque<u64>,
    /// The version of the last change.
    version: u64,
    /// The last removal that is not in `log` any more.
    forgotten: u64,
}

#[derive(Debug)]
struct Versioned {
    version: u64,
    json: Arc<str>,
}

/// A part of what a page does not know yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Batch {
    /// What the page has is void.
    pub(crate) reset: bool,
    /// Rows in the order of their changes; one without JSON went.
    pub(crate) rows: Vec<(Arc<str>, Option<Arc<str>>)>,
    /// The version up to which the page knows everything then.
    pub(crate) version: u64,
    /// There is no more now.
    pub(crate) complete: bool,
}

impl Model {
    /// The version of the last change.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Puts `rows` in the place of all rows whose names begin with `prefix`.
    pub(crate) fn replace(&mut self, prefix: &str, rows: Vec<Row>) {
        let from = (Bound::Included(prefix), Bound::Unbounded);
        let there = self.rows.range::<str, _>(from).map(|(name, _)| name);
        let there: Vec<_> = there.take_while(|name| name.starts_with(prefix)).cloned().collect();
        let kept: HashSet<&str> = rows.iter().map(|(name, _)| name.as_str()).collect();
        there.iter().filter(|name| !kept.contains(&***name)).for_each(|name| self.remove(name));
        for (name, json) in rows {
            self.put(&name, &json);
        }
    }

    /// Puts a row in the place of the one of this name.
    pub(crate) fn put(&mut self, name: &str, json: &str) {
        let (name, former) = match self.rows.get_key_value(name) {
            Some((_, known)) if *known.json == *json => return,
            Some((name, known)) => (name.clone(), Some(known.version)),
            None => (Arc::from(name), None),
        };
        former.map(|version| self.log.remove(&version));
        self.version += 1;
        self.log.insert(self.version, name.clone());
        self.rows.insert(name, Versioned { version: self.version, json: Arc::from(json) });
    }

    pub(crate) fn remove(&mut self, name: &str) {
        let Some((name, known)) = self.rows.remove_entry(name) else { return };
        self.log.remove(&known.version);
        self.version += 1;
        self.log.insert(self.version, name);
        self.removals.push_back(self.version);
        if self.removals.len() > REMEMBERED
            && let Some(oldest) = self.removals.pop_front()
        {
            self.log.remove(&oldest);
            self.forgotten = oldest;
        }
    }

    /// What a page that knows everything up to version `known` is to be told next, of about `most` bytes; `None` for a
    /// page that knows nothing.
    pub(crate) fn since(&self, known: Option<u64>, most: usize) -> Batch {
        let known = known.filter(|known| *known >= self.forgotten);
        let mut batch = Batch { reset: known.is_none(), ..Batch::default() };
        let (mut bytes, mut after) = (0, known.unwrap_or_default());
        for (version, name) in self.log.range((Bound::Excluded(after), Bound::Unbounded)) {
            if bytes >= most {
                batch.version = after;
                return batch;
            }
            after = *version;
            // a name may have come back since it went
            let there = self.rows.get(name).filter(|row| row.version == *version);
            if there.is_none() && batch.reset {
                continue;
            }
            let json = there.map(|row| row.json.clone());
            bytes += name.len() + json.as_deref().map_or(0, str::len);
            batch.rows.push((name.clone(), json));
        }
        (batch.version, batch.complete) = (self.version, true);
        batch
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: usize = usize::MAX;

    fn row(name: &str, json: &str) -> Row {
        (name.to_owned(), json.to_owned())
    }

    /// What a page shows.
    #[derive(Default)]
    struct Page {
        known: Option<u64>,
        rows: BTreeMap<String, String>,
    }

    impl Page {
        fn take(&mut self, batch: Batch) {
            if batch.reset {
                self.rows.clear();
            }
            for (name, json) in batch.rows {
                match json {
                    Some(json) => self.rows.insert(name.to_string(), json.to_string()),
                    None => self.rows.remove(&*name),
                };
            }
            self.known = Some(batch.version);
        }

        /// Takes parts until there is no more; answers how many.
        fn catch_up(&mut self, model: &Model, most: usize) -> usize {
            for parts in 1.. {
                let batch = model.since(self.known, most);
                let complete = batch.complete;
                self.take(batch);
                if complete {
                    return parts;
                }
            }
            unreachable!()
        }
    }

    fn rows(model: &Model) -> BTreeMap<String, String> {
        model.rows.iter().map(|(name, known)| (name.to_string(), known.json.to_string())).collect()
    }

    #[test]
    fn a_row_that_changed_ten_times_is_sent_once() {
        let mut model = Model::default();
        model.replace("a", vec![row("a", "0")]);
        let mut page = Page::default();
        page.catch_up(&model, ALL);
        (1..=10).for_each(|number| model.replace("a", vec![row("a", &number.to_string())]));
        let batch = model.since(page.known, ALL);
        assert_eq!(batch.rows, [("a".into(), Some("10".into()))]);
        assert!(!batch.reset && batch.complete);
    }

    #[test]
    fn what_did_not_change_is_not_told() {
        let mut model = Model::default();
        model.replace("pool/", vec![row("pool/0", "1"), row("pool/1", "2")]);
        let version = model.version();
        model.replace("pool/", vec![row("pool/0", "1"), row("pool/1", "2")]);
        assert_eq!(model.version(), version);
        assert_eq!(model.since(Some(version), ALL).rows, []);
    }

    #[test]
    fn rows_of_one_object_go_with_it_and_others_stay() {
        let mut model = Model::default();
        model.replace("pool/a/", vec![row("pool/a/", "1"), row("pool/a/0", "2")]);
        model.replace("pool/ab/", vec![row("pool/ab/", "3")]);
        let version = model.version();
        model.replace("pool/a/", Vec::new());
        let gone = model.since(Some(version), ALL).rows;
        assert_eq!(gone, [("pool/a/".into(), None), ("pool/a/0".into(), None)]);
        assert_eq!(rows(&model).into_keys().collect::<Vec<_>>(), ["pool/ab/"]);
    }

    #[test]
    fn a_page_that_missed_too_many_removals_begins_anew_and_nothing_is_queued_for_it() {
        let mut model = Model::default();
        model.replace("a", vec![row("a", "0")]);
        let mut page = Page::default();
        page.catch_up(&model, ALL);
        for number in 0..REMEMBERED + 2 {
            model.replace("b", vec![row("b", &number.to_string())]);
            model.replace("b", Vec::new());
        }
        assert!(model.log.len() <= REMEMBERED + 1, "{}", model.log.len());
        let batch = model.since(page.known, ALL);
        assert!(batch.reset);
        assert_eq!(batch.rows, [("a".into(), Some("0".into()))]);
    }

    proptest! {
        // whatever changes between two parts
        #[test]
        fn a_page_shows_what_there_is_after_any_changes(
            changes in prop::collection::vec((0_u8..6, prop::option::of(0_u8..3), 0_u8..4, 1_usize..40), 0..200),
        ) {
            let (mut model, mut pages) = (Model::default(), [Page::default(), Page::default()]);
            for (name, json, page, most) in changes {
                let name = format!("{name}");
                let now = json.map(|json| row(&name, &json.to_string())).into_iter().collect();
                model.replace(&name, now);
                if let Some(page) = pages.get_mut(usize::from(page)) {
                    page.take(model.since(page.known, most));
                }
            }
            for page in &mut pages {
                page.catch_up(&model, 7);
                prop_assert_eq!(&page.rows, &rows(&model));
            }
        }
    }

    #[test]
    fn a_large_model_is_sent_in_parts() {
        let mut model = Model::default();
        let all: Vec<_> = (0..1_000).map(|number| row(&format!("{number:04}"), "\"0123456789\"")).collect();
        model.replace("", all);
        let mut page = Page::default();
        let parts = page.catch_up(&model, 1_600);
        assert_eq!(parts, 10);
        assert_eq!(page.rows, rows(&model));
    }
}
