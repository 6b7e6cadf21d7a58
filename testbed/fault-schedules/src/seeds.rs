//! Lists of seeds: those that failed once, and those that somebody asks for.

use std::collections::BTreeSet;

/// A list of seeds that cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither a seed nor a range such as `0..100`")]
pub struct SeedError(String);

/// The seeds that failed once, in rising order. `failed-seeds.txt` says what each of them found.
///
/// # Panics
/// Never: a test reads the file.
#[must_use]
pub fn failed_seeds() -> Vec<u64> {
    seeds_of(include_str!("../failed-seeds.txt")).expect("every line begins with a seed")
}

pub(crate) fn seeds_of(file: &str) -> Result<Vec<u64>, SeedError> {
    let lines = file.lines().map(|line| line.split('#').next().unwrap_or_default());
    let first: Vec<_> = lines.filter_map(|line| line.split_whitespace().next()).collect();
    parse_seeds(&first.join(","))
}

/// Reads seeds and ranges with commas between them, as `55,840,0..100`. Returns each seed once, in rising order.
///
/// # Errors
/// Where a part is neither a seed nor a range.
///
/// ```
/// assert_eq!(fault_schedules::parse_seeds("55, 3..6, 4")?, [3, 4, 5, 55]);
/// # Ok::<_, fault_schedules::SeedError>(())
/// ```
pub fn parse_seeds(text: &str) -> Result<Vec<u64>, SeedError> {
    let mut seeds = BTreeSet::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let wrong = |_| SeedError(part.to_owned());
        match part.split_once("..") {
            Some((first, end)) => {
                seeds.extend(first.parse::<u64>().map_err(wrong)?..end.parse().map_err(wrong)?);
            }
            None => drop(seeds.insert(part.parse().map_err(wrong)?)),
        }
    }
    Ok(seeds.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_failed_seeds_can_be_read() {
        assert!(failed_seeds().contains(&55));
    }

    #[test]
    fn a_line_is_a_seed_and_a_remark() {
        assert_eq!(seeds_of("# remark\n\n7  found something 8\n3 # other\n"), Ok(vec![3, 7]));
        assert_eq!(seeds_of("seven"), Err(SeedError("seven".to_owned())));
    }
}
