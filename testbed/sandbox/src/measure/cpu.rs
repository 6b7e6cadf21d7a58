//! CPU time that processes used, as the kernel counts it.

use std::{collections::BTreeMap, fs};

use anyhow::{Context, Result};

/// The kernel tells times in hundredths of a second, on every architecture that we run on.
const TICKS_PER_SECOND: f64 = 100.0;

/// What `/proc/<pid>/stat` says: the parent, and the seconds of user and system time.
fn stat(text: &str) -> Option<(u32, f64)> {
    // the second field is the program's name in parentheses, which may hold anything
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some((fields.get(1)?.parse().ok()?, (ticks(11)? + ticks(12)?) / TICKS_PER_SECOND))
}

/// Seconds that a process used so far.
///
/// # Errors
/// When it has ended.
pub(super) fn seconds(pid: u32) -> Result<f64> {
    let file = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
    Ok(stat(&text).with_context(|| format!("understand {file}"))?.1)
}

/// Seconds that this process and all that it started used so far: API servers, etcd and the parts among them.
///
/// # Errors
/// When the kernel tells nothing of processes.
pub(super) fn of_all() -> Result<f64> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir("/proc").context("list the processes")? {
        let Ok(pid) = entry.context("list the processes")?.file_name().to_string_lossy().parse::<u32>()
        else {
            continue;
        };
        // one that has ended meanwhile has no part in it
        if let Some(known) = fs::read_to_string(format!("/proc/{pid}/stat")).ok().and_then(|text| stat(&text))
        {
            all.insert(pid, known);
        }
    }
    let own = std::process::id();
    let ours = |pid: u32| {
        let mut at = pid;
        while at != own {
            match all.get(&at) {
                Some((parent, _)) if *parent != 0 => at = *parent,
                _ => return false,
            }
        }
        true
    };
    Ok(all.iter().filter(|(pid, _)| ours(**pid)).map(|(_, (_, seconds))| seconds).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processs_time_is_read_whatever_its_name_is() {
        let text = "42 (a) b (c)) S 7 42 42 0 -1 4194560 1 2 3 4 150 50 6 7 20 0 1 0";
        assert_eq!(stat(text), Some((7, 2.0)));
        assert_eq!(stat("42"), None);
    }

    #[test]
    fn this_process_is_one_of_its_own() {
        // read first: the process goes on using time
        let own = seconds(std::process::id()).unwrap();
        assert!(of_all().unwrap() >= own);
    }
}
