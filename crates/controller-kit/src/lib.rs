//! How every long-running part lives: leases, caches, queues, Events, health endpoints.
