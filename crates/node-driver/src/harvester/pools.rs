//! IPPools: records of machines' static addresses.

use harvester_api::IPPool;
use kube::{
    Resource as _,
    api::{DynamicObject, ListParams, PostParams},
};

use super::{Error, Harvester, error};
use crate::pools::MANAGER;

impl Harvester {
    /// Reads a pool.
    ///
    /// # Errors
    /// As the server says.
    pub(crate) async fn pool(&self, name: &str) -> Result<Option<DynamicObject>, Error> {
        match self.anywhere::<IPPool>().get(name).await {
            Ok(pool) => Ok(Some(pool)),
            Err(error) if error::is_about(&error, &IPPool::plural(&()), name) => Ok(None),
            Err(error) => Err(Error::new("read", "IPPool", name, error)),
        }
    }

    /// Lists all pools.
    ///
    /// # Errors
    /// As the server says.
    pub(crate) async fn pools(&self) -> Result<Vec<DynamicObject>, Error> {
        let listed = self.anywhere::<IPPool>().list(&ListParams::default()).await;
        Ok(listed.map_err(|error| Error::new("list", "IPPools", "of Harvester", error))?.items)
    }

    /// Writes a pool whose resourceVersion is the one that was read, or asks what would come of it.
    ///
    /// The name of the writer is a parameter, and not left to the user agent, which a proxy may replace: the load balancer
    /// knows by it whose record it is.
    ///
    /// # Errors
    /// As the server says; a conflict where somebody else wrote in between.
    pub(crate) async fn put_pool(
        &self,
        name: &str,
        pool: &DynamicObject,
        dry_run: bool,
    ) -> Result<(), Error> {
        let params = PostParams { dry_run, field_manager: Some(MANAGER.to_owned()) };
        let put = self.anywhere::<IPPool>().replace(name, &params, pool).await;
        put.map(drop).map_err(|error| Error::new("write", "IPPool", name, error))
    }
}
