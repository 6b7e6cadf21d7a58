//! Running a component test: the runtime that it gets, and the macro that makes tests of it.

use std::env;
use std::fs::File;
use std::future::Future;
use std::io::Write as _;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::manifests::Rights;
use crate::test_cluster::TestCluster;

/// A test that takes longer hangs; the next one waits for the same servers.
const REAL_TEST_WITHIN: Duration = Duration::from_secs(300);
/// A clock that stands still while nothing can go on would wait for ever: this timer ends it.
const SIMULATED_TEST_WITHIN: Duration = Duration::from_secs(400 * 24 * 3600);

/// Names the file that gets a line for each test that runs on the simulated servers only: `reason<TAB>test`.
const NOTES: &str = "TEST_CLUSTER_NOTES";

/// Runs a test on two fresh simulated servers, on a paused clock, in one thread.
///
/// # Panics
/// When the test does.
pub fn on_simulated<Test: Future<Output = ()>>(rights: Rights, test: impl FnOnce(TestCluster) -> Test) {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime for the test").block_on(async {
        let run = async { Box::pin(test(Box::pin(TestCluster::simulated(rights)).await)).await };
        let done = timeout(SIMULATED_TEST_WITHIN, run).await;
        done.expect("the test waits for something that nothing will bring");
    });
}

/// Runs a test on the real servers of this process.
///
/// # Panics
/// When the test does, and where this machine has no such servers.
pub fn on_real<Test: Future<Output = ()>>(rights: Rights, test: impl FnOnce(TestCluster) -> Test) {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime for the test").block_on(async {
        // waiting for the servers is not the test's time
        let cluster = Box::pin(TestCluster::real(rights)).await;
        timeout(REAL_TEST_WITHIN, Box::pin(test(cluster))).await.expect("the test hangs");
    });
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
    on_simulated(rights, test);
}

/// Makes tests of async functions that take a [`TestCluster`]: of a function `f` the four tests `simulated::ours::f`,
/// `simulated::existing::f`, `real::ours::f` and `real::existing::f`; and with `#[simulated_only("why")]` in front of it
/// `simulated_only::ours::f` and `simulated_only::existing::f`. Once in a module.
#[macro_export]
macro_rules! component_tests {
    (@ [$($both:ident)*] [$($only:ident $why:literal,)*]) => {
        mod simulated {
            mod ours {
                $(#[test] fn $both() { $crate::on_simulated($crate::Rights::Ours, super::super::$both); })*
            }
            mod existing {
                $(#[test] fn $both() { $crate::on_simulated($crate::Rights::Existing, super::super::$both); })*
            }
        }
        mod real {
            mod ours {
                $(#[test] fn $both() { $crate::on_real($crate::Rights::Ours, super::super::$both); })*
            }
            mod existing {
                $(#[test] fn $both() { $crate::on_real($crate::Rights::Existing, super::super::$both); })*
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
    (@ [$($both:ident)*] [$($only:tt)*]
        $(#[doc = $doc:literal])*
        #[simulated_only($why:literal)]
        async fn $name:ident($cluster:ident : $type:ty) $body:block
        $($rest:tt)*
    ) => {
        $(#[doc = $doc])*
        #[cfg(test)]
        async fn $name($cluster: $type) $body
        $crate::component_tests! { @ [$($both)*] [$($only)* $name $why,] $($rest)* }
    };
    (@ [$($both:ident)*] [$($only:tt)*]
        $(#[doc = $doc:literal])*
        async fn $name:ident($cluster:ident : $type:ty) $body:block
        $($rest:tt)*
    ) => {
        $(#[doc = $doc])*
        #[cfg(test)]
        async fn $name($cluster: $type) $body
        $crate::component_tests! { @ [$($both)* $name] [$($only)*] $($rest)* }
    };
    ($($tests:tt)*) => {
        $crate::component_tests! { @ [] [] $($tests)* }
    };
}
