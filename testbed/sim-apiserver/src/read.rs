//! Get and list.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use http::{Response, StatusCode};
use serde_json::{Value, json};

use crate::Failure;
use crate::conversion::shown;
use crate::form::{Form, Include, Shape, bytes, in_version, metadata_only, to_bytes};
use crate::kind::Kind;
use crate::machinery;
use crate::selection::Selection;
use crate::server::{ApiServer, Ask, json_response, value_response};
use crate::store::{Key, Stored};

/// So many unfinished lists are kept for clients that read page by page.
const OPEN_LISTS: usize = 64;

/// Lists that were answered in part. What a client continues is the state that it began with.
#[derive(Debug, Default)]
pub(crate) struct Pages(Mutex<OpenLists>);

#[derive(Debug, Default)]
struct OpenLists {
    next: u64,
    lists: VecDeque<OpenList>,
}

/// The rest of a list, and the state that it is of.
#[derive(Clone, Debug)]
struct OpenList {
    id: u64,
    revision: u64,
    rest: Arc<[Arc<Stored>]>,
}

impl Pages {
    fn open(&self, revision: u64, rest: Arc<[Arc<Stored>]>) -> u64 {
        let mut open = self.0.lock().expect("no panic while a list is kept");
        open.next += 1;
        let id = open.next;
        open.lists.push_back(OpenList { id, revision, rest });
        if open.lists.len() > OPEN_LISTS {
            open.lists.pop_front();
        }
        id
    }

    fn find(&self, id: u64) -> Option<OpenList> {
        let open = self.0.lock().expect("no panic while a list is kept");
        open.lists.iter().find(|list| list.id == id).cloned()
    }
}

/// One object.
pub(crate) async fn get(server: &ApiServer, ask: &Ask) -> Result<Response<Body>, Failure> {
    let stored = find(server, ask)?;
    match ask.subresource() {
        "" | "status" | "ephemeralcontainers" => present(server, ask, StatusCode::OK, &stored).await,
        "scale" => {
            let stored = shown(server, &ask.kind, ask.version, &stored).await?;
            let scale = crate::scale::read(&ask.kind, ask.version, &stored.value)?;
            Ok(value_response(StatusCode::OK, &scale))
        }
        other if ask.api().has_subresource(other) => Err(Failure::method_not_allowed()),
        _ => Err(Failure::no_such_path()),
    }
}

/// The object that the path names.
pub(crate) fn find(server: &ApiServer, ask: &Ask) -> Result<Arc<Stored>, Failure> {
    let key = Key::new(ask.namespace(), ask.name());
    server.0.store.get(&ask.kind.table, &key).ok_or_else(|| Failure::not_found(ask.api(), ask.name()))
}

/// A kept object, in the form that was asked for.
pub(crate) async fn present(
    server: &ApiServer,
    ask: &Ask,
    code: StatusCode,
    stored: &Arc<Stored>,
) -> Result<Response<Body>, Failure> {
    let stored = shown(server, &ask.kind, ask.version, stored).await?;
    Ok(match ask.shape {
        Shape::Table(include) => {
            let mut table = table(server, &ask.kind, ask.version, include, &[&stored.value]);
            table["metadata"]["resourceVersion"] = stored.value["metadata"]["resourceVersion"].clone();
            value_response(code, &table)
        }
        shape => {
            let form = Form::of(&ask.kind, ask.version, shape);
            json_response(code, stored.bytes(form, |value| bytes(&ask.kind, ask.version, shape, value)))
        }
    })
}

/// A table of objects with the columns that kubectl prints.
pub(crate) fn table(
    server: &ApiServer,
    kind: &Kind,
    version: usize,
    include: Include,
    objects: &[&Value],
) -> Value {
    let objects: Vec<Value> = objects.iter().map(|object| in_version(kind, version, object)).collect();
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| match include {
            Include::None => Value::Null,
            Include::Metadata => metadata_only(object),
            Include::Object => object.clone(),
        })
        .collect();
    machinery::table(kind, version, &objects, rows, server.0.clock.now())
}

/// Many objects: all, or a page of them.
pub(crate) async fn list(server: &ApiServer, ask: &Ask) -> Result<Response<Body>, Failure> {
    let selection = Selection::of(ask)?;
    let mut page = match &ask.query.continue_at {
        Some(token) => continued(server, ask, token)?,
        None => first(server, ask, &selection)?,
    };
    for stored in &mut page.items {
        *stored = shown(server, &ask.kind, ask.version, stored).await?;
    }
    let mut metadata = json!({"resourceVersion": page.revision.to_string()});
    if let Some(token) = &page.token {
        metadata["continue"] = token.clone().into();
        if selection.is_everything() {
            metadata["remainingItemCount"] = page.remaining.into();
        }
    }
    if let Shape::Table(include) = ask.shape {
        let objects: Vec<&Value> = page.items.iter().map(|stored| &stored.value).collect();
        let mut table = table(server, &ask.kind, ask.version, include, &objects);
        table["metadata"] = metadata;
        return Ok(value_response(StatusCode::OK, &table));
    }
    let (list_kind, api_version) = match ask.shape {
        Shape::Metadata => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned()),
        _ => (ask.api().list_kind.clone(), ask.api().api_version()),
    };
    let head = json!({"kind": list_kind, "apiVersion": api_version, "metadata": metadata});
    let head = to_bytes(&head);
    let form = Form::of(&ask.kind, ask.version, ask.shape);
    let items: Vec<_> = page
        .items
        .iter()
        .map(|stored| stored.bytes(form, |value| bytes(&ask.kind, ask.version, ask.shape, value)))
        .collect();
    let mut body =
        Vec::with_capacity(head.len() + 16 + items.iter().map(|item| item.len() + 1).sum::<usize>());
    body.extend_from_slice(&head[..head.len() - 1]);
    body.extend_from_slice(br#","items":["#);
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            body.push(b',');
        }
        body.extend_from_slice(item);
    }
    body.extend_from_slice(b"]}");
    Ok(json_response(StatusCode::OK, body))
}

struct Page {
    revision: u64,
    items: Vec<Arc<Stored>>,
    token: Option<String>,
    remaining: usize,
}

fn first(server: &ApiServer, ask: &Ask, selection: &Selection) -> Result<Page, Failure> {
    let (revision, mut items) = server.0.store.list(&ask.kind.table, selection.namespace());
    if let Some(text) = &ask.query.resource_version {
        let asked = revision_of(text)?;
        if asked > revision {
            return Err(Failure::version_too_large(asked, revision));
        }
    }
    if !selection.is_everything() {
        items.retain(|stored| selection.matches(&stored.value));
    }
    if ask.query.limit == 0 || items.len() <= ask.query.limit {
        return Ok(Page { revision, items, token: None, remaining: 0 });
    }
    let rest: Arc<[_]> = items.split_off(ask.query.limit).into();
    let remaining = rest.len();
    let id = server.0.pages.open(revision, rest);
    Ok(Page { revision, items, token: Some(format!("{id}-0")), remaining })
}

fn continued(server: &ApiServer, ask: &Ask, token: &str) -> Result<Page, Failure> {
    let (id, offset): (u64, usize) = token
        .split_once('-')
        .and_then(|(id, offset)| Some((id.parse().ok()?, offset.parse().ok()?)))
        .ok_or_else(|| Failure::bad_request("continue key is not valid"))?;
    let OpenList { revision, rest, .. } = server.0.pages.find(id).ok_or_else(|| {
        let message = "The provided continue parameter is too old to display a consistent list result. \
                       You must start a new list without the continue parameter.";
        Failure::expired(message)
    })?;
    let end = match ask.query.limit {
        0 => rest.len(),
        limit => rest.len().min(offset.saturating_add(limit)),
    };
    let items = rest.get(offset..end).unwrap_or_default().to_vec();
    let remaining = rest.len() - end.max(offset.min(rest.len()));
    let token = (remaining > 0).then(|| format!("{id}-{end}"));
    Ok(Page { revision, items, token, remaining })
}

/// Reads a `resourceVersion` of a query.
pub(crate) fn revision_of(text: &str) -> Result<u64, Failure> {
    text.parse()
        .map_err(|_| Failure::bad_request(format!("resourceVersion: Invalid value: {text:?}: not a number")))
}
