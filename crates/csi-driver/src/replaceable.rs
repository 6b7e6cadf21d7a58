//! A gRPC service behind which another one can be put while it serves: the driver listens before it knows the host.

use std::{
    convert::Infallible,
    sync::{Arc, RwLock},
    task::{Context, Poll},
};

use tonic::{
    body::Body,
    codegen::{
        Service,
        http::{Request, Response},
    },
    server::NamedService,
};

/// The service that answers now. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Replaceable<S>(Arc<RwLock<S>>);

impl<S> Replaceable<S> {
    pub(crate) fn new(service: S) -> Self {
        Self(Arc::new(RwLock::new(service)))
    }

    /// Lets `service` answer every call that begins from now on; calls under way stay with the former one.
    pub(crate) fn replace(&self, service: S) {
        *self.0.write().expect("no panic while a service is replaced") = service;
    }
}

impl<S: NamedService> NamedService for Replaceable<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for Replaceable<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = S::Future;

    /// Services that tonic generates are ready always.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let mut service = self.0.read().expect("no panic while a service is replaced").clone();
        service.call(request)
    }
}
