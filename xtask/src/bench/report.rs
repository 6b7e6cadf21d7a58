//! A run's figures, as a table and as JSON.

use std::fmt::Write as _;
use std::fs;
use std::thread;

use anyhow::Result;
use serde::Serialize;

use super::figures::FIGURES;

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Report {
    server: String,
    machine: String,
    figures: Vec<Measured>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Measured {
    name: &'static str,
    /// `None` where this machine could not tell.
    value: Option<f64>,
    /// Why it could not.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_measured: Option<String>,
    unit: &'static str,
    aim: Option<f64>,
    go: Option<f64>,
}

impl Report {
    /// Takes the lines `figure <name> <value>` and `figure <name> not measured: <why>` out of `output`. A figure of which
    /// there is no line is not in the report.
    pub(super) fn new(server: &str, machine: &str, output: &str) -> Self {
        let figures = FIGURES
            .iter()
            .filter_map(|figure| {
                let (value, not_measured) =
                    (value(output, figure.name), why_not(output, figure.name).map(str::to_owned));
                if value.is_none() && not_measured.is_none() {
                    return None;
                }
                let aim = Some(figure.aim).filter(|aim| aim.is_finite());
                Some(Measured {
                    name: figure.name,
                    value,
                    not_measured,
                    unit: figure.unit,
                    aim,
                    go: figure.go,
                })
            })
            .collect();
        Self { server: server.to_owned(), machine: machine.to_owned(), figures }
    }

    /// # Errors
    /// Where a figure is not a number.
    pub(super) fn json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// For people, in Markdown.
    pub(super) fn table(&self) -> String {
        let mut table = format!("Server {}, {}\n\n", self.server, self.machine);
        table.push_str("| figure | value | unit | aim | Go |\n|---|---:|---|---:|---:|\n");
        for Measured { name, value, not_measured, unit, aim, go } in &self.figures {
            let value = value.map(|value| {
                let missed = if aim.is_some_and(|aim| value > aim) { " (!)" } else { "" };
                format!("{}{missed}", rounded(value))
            });
            let why_not = || format!("not measured: {}", not_measured.as_deref().unwrap_or_default());
            let value = value.unwrap_or_else(why_not);
            let or_none =
                |number: &Option<f64>| number.map_or_else(|| "–".to_owned(), |number| number.to_string());
            let (aim, go) = (or_none(aim), or_none(go));
            writeln!(table, "| {name} | {value} | {unit} | {aim} | {go} |")
                .expect("a String takes everything");
        }
        table
    }
}

/// The value of the line `figure <name> <value>` in `output`.
pub(super) fn value(output: &str, name: &str) -> Option<f64> {
    output.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("figure") && words.next() == Some(name)).then(|| words.next()?.parse().ok())?
    })
}

/// The reason of the line `figure <name> not measured: <why>` in `output`.
fn why_not<'a>(output: &'a str, name: &str) -> Option<&'a str> {
    output.lines().find_map(|line| {
        let rest = line.trim().strip_prefix("figure ")?.strip_prefix(name)?;
        rest.strip_prefix(" not measured: ")
    })
}

/// Three digits that mean something are enough.
fn rounded(value: f64) -> f64 {
    if value >= 100.0 { value.round() } else { (value * 100.0).round() / 100.0 }
}

/// What the figures were taken on.
pub(super) fn machine() -> String {
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let model = fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            text.lines()
                .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
                .map(|m| m.1.to_owned())
        })
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    format!("{cores} cores, {model}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str =
        "starting\nfigure service-create-p50-ms 12.344\nfigure burst-100-p99-s 1.75\nfigure unknown 3\n";

    #[test]
    fn figures_are_read_from_the_output() {
        let report = Report::new("sim", "2 cores", OUTPUT);
        let values: Vec<_> = report.figures.iter().map(|figure| (figure.name, figure.value)).collect();
        assert_eq!(values, [("service-create-p50-ms", Some(12.344)), ("burst-100-p99-s", Some(1.75))]);
    }

    #[test]
    fn the_json_has_the_form_that_readers_expect() {
        let report = Report::new("sim", "2 cores", "figure service-create-p50-ms 12\n");
        let expected = serde_json::json!({"server": "sim", "machine": "2 cores", "figures": [
            {"name": "service-create-p50-ms", "value": 12.0, "unit": "ms", "aim": 25.0, "go": 1030.0},
        ]});
        assert_eq!(serde_json::from_str::<serde_json::Value>(&report.json().unwrap()).unwrap(), expected);
    }

    #[test]
    fn a_figure_that_cannot_be_measured_here_is_in_the_report_with_the_reason() {
        let output = "figure csi-sanity-failed not measured: needs cargo xtask tools\n";
        let report = Report::new("sim-storage", "2 cores", output);
        let table = report.table();
        let row = "| csi-sanity-failed | not measured: needs cargo xtask tools | specs | 0 | 36 |";
        assert!(table.contains(row), "{table}");
        let json: serde_json::Value = serde_json::from_str(&report.json().unwrap()).unwrap();
        let figure = &json["figures"][0];
        assert_eq!(figure["value"], serde_json::Value::Null);
        assert_eq!(figure["not_measured"], "needs cargo xtask tools");
    }

    #[test]
    fn a_figure_that_explains_another_has_no_aim() {
        let table = Report::new("real", "2 cores", "figure burst-1000-testbed-cpu-s 31\n").table();
        assert!(table.contains("| burst-1000-testbed-cpu-s | 31 | CPU s | – | – |"), "{table}");
    }

    #[test]
    fn the_table_marks_what_misses_its_aim() {
        let table = Report::new("sim", "2 cores", OUTPUT).table();
        assert!(table.contains("| service-create-p50-ms | 12.34 | ms | 25 | 1030 |"), "{table}");
        assert!(table.contains("| burst-100-p99-s | 1.75 (!) | s | 1.5 | 102 |"), "{table}");
    }
}
