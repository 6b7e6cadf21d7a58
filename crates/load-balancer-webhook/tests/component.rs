//! The admission webhook against API servers: over TLS, behind both API servers, and beside the controller.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod component {
    mod admission;
    mod conversion;
    mod fixtures;
    mod grants;
    mod hostile;
    mod kubectl;
    mod named_pool_scope;
    mod reviews;
    mod secrets;
    mod status_writer;
    mod terraform;
}
