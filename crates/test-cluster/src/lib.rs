//! One API for component tests on the simulated and on the real API server.
