//! Kubernetes API machinery as pure functions: schemas, patches, managed fields, selectors, tables, OpenAPI.
