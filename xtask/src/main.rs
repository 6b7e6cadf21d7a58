//! The tasks of this workspace: `cargo xtask test` runs everything that stands behind a change, the others run a part
//! of it or measure.
//!
//! Nothing here is installed by hand: what a task needs from outside, `tools` builds once into a cache.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a task talks to the person who started it")]

mod bench;
mod book;
mod charts;
mod counts;
mod image;
mod package_driver;
mod seeds;
mod step;
mod test;
mod tools;
mod tour;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Tasks of the Harvester cloud provider's workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run everything: format, lints, tests on both API servers, documents, licences, the sandbox tour, fault schedules.
    Test(test::Options),
    /// Build the outside tools (API server, etcd, kubectl, helm, cargo-deny, mdBook) into the cache, where they are not there yet.
    Tools,
    /// Run the sandbox's tour.
    Tour(tour::Options),
    /// Run the whole system under seeded fault schedules.
    Seeds(seeds::Options),
    /// Measure; a table for people, JSON in target/bench/.
    Bench(bench::Options),
    /// Package the node driver as Rancher downloads it, into target/node-driver/.
    PackageDriver(package_driver::Options),
    /// Make the images as OCI layouts, without docker, into target/image/.
    Image(image::Options),
    /// Package the Helm charts as a repository, with its index and the list of images, into target/charts/.
    Charts(charts::Options),
    /// Make a book of docs/, into target/book/.
    Book,
}

fn main() -> ExitCode {
    let done = match Cli::parse().task {
        Task::Test(options) => test::run(&options),
        Task::Tools => tools::run(),
        Task::Tour(options) => tour::run(&options),
        Task::Seeds(options) => seeds::run(&options),
        Task::Bench(options) => bench::run(&options),
        Task::PackageDriver(options) => package_driver::run(&options),
        Task::Image(options) => image::run(&options),
        Task::Charts(options) => charts::run(&options),
        Task::Book => book::run(),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
