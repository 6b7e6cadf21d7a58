//! `cargo xtask book`: the pages of docs/ as a book, `target/book/index.html`, by mdBook. Without network, once mdBook is there.

mod links;

use std::process::Command;

use anyhow::{Context as _, Result};
use outside_tools::Tool;

use crate::{step, tools, workspace};

/// Builds it.
///
/// # Errors
/// Where mdBook is missing and cannot be installed, or the book cannot be written.
pub(crate) fn run() -> Result<bool> {
    tools::ensure(Tool::MdBook)?;
    let mdbook = Tool::MdBook.find().context("mdBook was just installed")?;
    let folder = workspace::target().join("book");
    let mut command = Command::new(mdbook);
    command.current_dir(workspace::root()).args(["build", "--dest-dir"]).arg(&folder);
    let built = step::run("build the book", &mut command)?;
    if !built.succeeded {
        return Ok(false);
    }
    let dead = links::mend(&folder, workspace::root())?;
    for link in &dead {
        println!("leads nowhere: {link}");
    }
    println!("{}", folder.join("index.html").display());
    Ok(dead.is_empty())
}
