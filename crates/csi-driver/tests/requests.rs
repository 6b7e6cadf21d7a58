//! Requests as bytes: every field of every call missing, too long, out of place or of nobody; and bytes that nobody
//! meant.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod requests {
    mod bytes;
    mod driver;
    mod fields;
    mod of_controller;
    mod of_node;
    mod rows;
}
