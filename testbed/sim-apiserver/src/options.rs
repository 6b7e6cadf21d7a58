//! The options of a request are checked before anything else is looked at.

use sim_apimachinery::options::{List, Patch, Write, refusal};

use crate::Failure;
use crate::request::{Media, Verb};
use crate::server::Ask;

/// Refuses options that make no sense. Those of deletes may be in the body, and are checked where that is read.
pub(crate) fn check(ask: &Ask) -> Result<(), Failure> {
    let query = &ask.query;
    let text = |option: &'_ Option<String>| option.clone().unwrap_or_default();
    let (field_manager, field_validation) = (text(&query.field_manager), text(&query.field_validation));
    let write =
        Write { dry_run: &query.dry_run, field_manager: &field_manager, field_validation: &field_validation };
    match ask.verb {
        Verb::Create => refusal("CreateOptions", &write.faults()),
        Verb::Update => refusal("UpdateOptions", &write.faults()),
        // what is no patch is refused as such
        Verb::Patch if !ask.media.is_patch() => Ok(()),
        Verb::Patch => {
            let patch = Patch { write, force: query.force, is_apply: ask.media == Media::ApplyPatch };
            refusal("PatchOptions", &patch.faults())
        }
        Verb::List | Verb::Watch | Verb::DeleteCollection => {
            let (resource_version, version_match) =
                (text(&query.resource_version), text(&query.version_match));
            let list = List {
                resource_version: &resource_version,
                version_match: &version_match,
                continues: query.continue_at.is_some(),
                watch: ask.verb == Verb::Watch,
                names_initial_events: query.initial_events.is_some(),
            };
            refusal("ListOptions", &list.faults())
        }
        Verb::Get | Verb::Delete => Ok(()),
    }
}
