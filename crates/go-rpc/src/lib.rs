//! Go's encoding/gob and net/rpc over HTTP CONNECT.
