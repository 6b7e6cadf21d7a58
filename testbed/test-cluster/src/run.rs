//! Running a component test: the runtime that it gets, and the macro that makes tests of it.

use std::env;
use std::fs::File;
use std::future::Future;
use std::io::{self, Write as _};
use std::sync::Once;
use std::time::Duration;

use outside_tools::REAL_SERVER;
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::manifests::Rights;
use crate::real;
use crate::test_cluster::TestCluster;

/// A test that takes longer hangs; the next one waits for the same servers.
const REAL_TEST_WITHIN: Duration = Duration::from_secs(300);
/// A clock that stands still while nothing can go on would wait for ever: this timer ends it.
const SIMULATED_TEST_WITHIN: Duration = Duration::from_secs(400 * 24 * 3600);

/// Names the file that gets a line for each test that runs on the simulated servers only: `reason<TAB>test`.
const NOTES: &str = "TEST_CLUSTER_NOTES";

/// The roles of a test, and whether it is run with each set of them on each kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Roles {
    /// With these; it does not ask for them.
    Any(Rights),
    /// With these now, and with the others as well.
    Each(Rights),
}

impl Roles {
    pub(crate) fn rights(self) -> Rights {
        match self {
            Self::Any(rights) | Self::Each(rights) => rights,
        }
    }
}

impl From<Rights> for Roles {
    fn from(rights: Rights) -> Self {
        Self::Each(rights)
    }
}

/// Runs a test on two fresh simulated servers, on a paused clock, in one thread.
///
/// # Panics
/// When the test does.
pub fn on_simulated<Test: Future<Output = ()>>(
    roles: impl Into<Roles>,
    test: impl FnOnce(TestCluster) -> Test,
) {
    simulated(roles.into(), |cluster| cluster, test);
}

/// [`on_simulated`], for a test that runs on the real servers too: what it could not do there it may not do here either.
///
/// # Panics
/// When the test does.
pub fn on_simulated_as_on_real<Test: Future<Output = ()>>(
    roles: Roles,
    test: impl FnOnce(TestCluster) -> Test,
) {
    simulated(roles, TestCluster::limited_as_on_real, test);
}

fn simulated<Test: Future<Output = ()>>(
    roles: Roles,
    limited: impl FnOnce(TestCluster) -> TestCluster,
    test: impl FnOnce(TestCluster) -> Test,
) {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime for the test").block_on(async {
        let run = async {
            let cluster = Box::pin(TestCluster::simulated(roles.rights())).await.with(roles);
            Box::pin(test(limited(cluster))).await;
        };
        let done = timeout(SIMULATED_TEST_WITHIN, run).await;
        done.expect("the test waits for something that nothing will bring");
    });
}

/// Set where the real servers must be there: a test without them fails, instead of being left out.
const NEED_REAL: &str = "TEST_CLUSTER_NEED_REAL";

/// Runs a test on the real servers of this process. On a machine that lacks them the test is left out, which the process
/// says once.
///
/// # Panics
/// When the test does, and where `TEST_CLUSTER_NEED_REAL` is set and this machine has no such servers.
pub fn on_real<Test: Future<Output = ()>>(roles: Roles, test: impl FnOnce(TestCluster) -> Test) {
    if is_left_out() {
        return;
    }
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime for the test").block_on(async {
        // waiting for the servers is not the test's time
        let cluster = Box::pin(TestCluster::real(roles.rights())).await.with(roles);
        timeout(REAL_TEST_WITHIN, Box::pin(test(cluster))).await.expect("the test hangs");
    });
}

/// Whether tests on real servers are left out on this machine, which the process says once.
pub(crate) fn is_left_out() -> bool {
    let missing = REAL_SERVER.into_iter().find(|tool| tool.find().is_none());
    let Some(missing) = missing.filter(|_| env::var_os(NEED_REAL).is_none()) else { return false };
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        let why = real::Error::Missing(missing);
        // past the test harness, which shows nothing of a test that passes
        let said = writeln!(io::stderr(), "left out: the tests on real API servers ({why})");
        said.expect("somebody hears what is left out");
    });
    true
}

/// [`on_simulated`], for a test that has `reason` not to run on the real servers too; `cargo xtask test` tells both.
///
/// # Panics
/// When the test does, and where the file of `TEST_CLUSTER_NOTES` cannot be written.
pub fn only_on_simulated<Test: Future<Output = ()>>(
    reason: &str,
    name: &str,
    rights: Rights,
    test: impl FnOnce(TestCluster) -> Test,
) {
    if let Some(file) = env::var_os(NOTES) {
        let mut file = File::options().append(true).create(true).open(file).expect("the notes can be opened");
        // one write: other tests write there at the same time
        file.write_all(format!("{reason}\t{name}\n").as_bytes()).expect("the notes can be written");
    }
    on_simulated(Roles::Each(rights), test);
}

/// Makes tests of async functions that take a [`TestCluster`]: of a function `f` the three tests `simulated::ours::f`,
/// `simulated::existing::f` and `real::ours::f`. Once in a module. Attributes in front of `f`:
///
/// * `#[each_role]`: it asks for [`TestCluster::rights`], so `real::existing::f` is a test too. The simulated servers,
///   which cost nothing, run every test with both sets; that both kinds of server obey roles alike has a test of its own.
/// * `#[simulated_only("why")]`: `simulated_only::ours::f` and `simulated_only::existing::f`, and no other.
#[macro_export]
macro_rules! component_tests {
    (@ [$($once:ident)*] [$($each:ident)*] [$($only:ident $why:literal,)*]) => {
        mod simulated {
            mod ours {
                $(#[test] fn $once() { $crate::on_simulated_as_on_real($crate::Roles::Any($crate::Rights::Ours), super::super::$once); })*
                $(#[test] fn $each() { $crate::on_simulated_as_on_real($crate::Roles::Each($crate::Rights::Ours), super::super::$each); })*
            }
            mod existing {
                $(#[test] fn $once() { $crate::on_simulated_as_on_real($crate::Roles::Any($crate::Rights::Existing), super::super::$once); })*
                $(#[test] fn $each() { $crate::on_simulated_as_on_real($crate::Roles::Each($crate::Rights::Existing), super::super::$each); })*
            }
        }
        mod real {
            mod ours {
                $(#[test] fn $once() { $crate::on_real($crate::Roles::Any($crate::Rights::Ours), super::super::$once); })*
                $(#[test] fn $each() { $crate::on_real($crate::Roles::Each($crate::Rights::Ours), super::super::$each); })*
            }
            mod existing {
                $(#[test] fn $each() { $crate::on_real($crate::Roles::Each($crate::Rights::Existing), super::super::$each); })*
            }
        }
        mod simulated_only {
            mod ours {
                $(#[test] fn $only() {
                    let name = concat!(module_path!(), "::", stringify!($only));
                    $crate::only_on_simulated($why, name, $crate::Rights::Ours, super::super::$only);
                })*
            }
            mod existing {
                $(#[test] fn $only() {
                    let name = concat!(module_path!(), "::", stringify!($only));
                    $crate::only_on_simulated($why, name, $crate::Rights::Existing, super::super::$only);
                })*
            }
        }
    };
    (@ [$($once:ident)*] [$($each:ident)*] [$($only:tt)*]
        $(#[doc = $doc:literal])*
        #[simulated_only($why:literal)]
        async fn $name:ident($cluster:ident : $type:ty $(,)?) $body:block
        $($rest:tt)*
    ) => {
        $(#[doc = $doc])*
        #[cfg(test)]
        async fn $name($cluster: $type) $body
        $crate::component_tests! { @ [$($once)*] [$($each)*] [$($only)* $name $why,] $($rest)* }
    };
    (@ [$($once:ident)*] [$($each:ident)*] [$($only:tt)*]
        $(#[doc = $doc:literal])*
        #[each_role]
        async fn $name:ident($cluster:ident : $type:ty $(,)?) $body:block
        $($rest:tt)*
    ) => {
        $(#[doc = $doc])*
        #[cfg(test)]
        async fn $name($cluster: $type) $body
        $crate::component_tests! { @ [$($once)*] [$($each)* $name] [$($only)*] $($rest)* }
    };
    (@ [$($once:ident)*] [$($each:ident)*] [$($only:tt)*]
        $(#[doc = $doc:literal])*
        async fn $name:ident($cluster:ident : $type:ty $(,)?) $body:block
        $($rest:tt)*
    ) => {
        $(#[doc = $doc])*
        #[cfg(test)]
        async fn $name($cluster: $type) $body
        $crate::component_tests! { @ [$($once)* $name] [$($each)*] [$($only)*] $($rest)* }
    };
    (@ [$($once:ident)*] [$($each:ident)*] [$($only:tt)*] $($rest:tt)+) => {
        ::core::compile_error!(::core::concat!(
            "expected `async fn name(cluster: TestCluster) { … }`, with doc comments and at most one of #[each_role] and \
             #[simulated_only(\"why\")] before it, found: ",
            ::core::stringify!($($rest)+)
        ));
    };
    ($($tests:tt)*) => {
        $crate::component_tests! { @ [] [] [] $($tests)* }
    };
}
