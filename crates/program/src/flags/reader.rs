//! Values of flags as checked types. Faults are collected, so that a user hears of all of them at once.

use std::{net::SocketAddr, str::FromStr, time::Duration};

use super::{Given, Table, parse::boolean};
use crate::duration;

/// Reads one environment variable.
type Variable<'a> = Box<dyn Fn(&str) -> Option<String> + 'a>;

/// Reads the values of a command line and of the environment.
pub struct Reader<'a> {
    table: &'a Table,
    given: Given,
    variable: Variable<'a>,
    faults: Vec<String>,
}

impl Table {
    /// Parses `args`, which begin after the program's name. `variable` reads the environment.
    pub fn read<'a>(&'a self, args: &[String], variable: impl Fn(&str) -> Option<String> + 'a) -> Reader<'a> {
        let (given, faults) = self.parse(args);
        Reader { table: self, given, variable: Box::new(variable), faults }
    }
}

impl Reader<'_> {
    /// The arguments alone.
    pub fn given(&self) -> &Given {
        &self.given
    }

    /// Whether a switch is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.text(name).as_deref().and_then(boolean).unwrap_or(false)
    }

    /// The text of a value: of the last flag, else of the environment, else the default. An empty text is none.
    pub fn text(&self, name: &str) -> Option<String> {
        self.found(name, |given| given.last(name).map(str::to_owned)).map(|(text, _)| text)
    }

    /// The checked value, or `fallback` where there is none or a wrong one, which is a fault.
    pub fn read<T>(&mut self, name: &str, fallback: T, parse: impl FnOnce(&str) -> Result<T, String>) -> T {
        self.optional(name, parse).unwrap_or(fallback)
    }

    /// The checked value, if there is one. A wrong one is a fault.
    pub fn optional<T>(&mut self, name: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let (text, origin) = self.found(name, |given| given.last(name).map(str::to_owned))?;
        self.checked(parse(&text), &origin)
    }

    /// A number, or `fallback`.
    pub fn number<T: FromStr>(&mut self, name: &str, fallback: T) -> T {
        self.read(name, fallback, number)
    }

    /// A duration in Go's form, or `fallback`.
    pub fn duration(&mut self, name: &str, fallback: Duration) -> Duration {
        self.read(name, fallback, duration::parse)
    }

    /// The items of a list: of repeated flags and between commas. Blanks and empty items do not count.
    pub fn list<T>(&mut self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Vec<T> {
        let Some((text, origin)) = self.found(name, |given| given.joined(name)) else { return vec![] };
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        let parsed: Vec<_> = items.map(parse).collect();
        parsed.into_iter().filter_map(|item| self.checked(item, &origin)).collect()
    }

    /// Adds a fault that is about more than one flag.
    pub fn fault(&mut self, fault: impl Into<String>) {
        self.faults.push(fault.into());
    }

    /// # Errors
    /// One sentence for each fault, where there is one.
    pub fn finish<T>(self, value: T) -> Result<T, Vec<String>> {
        if self.faults.is_empty() { Ok(value) } else { Err(self.faults) }
    }

    fn checked<T>(&mut self, parsed: Result<T, String>, origin: &str) -> Option<T> {
        parsed.map_err(|fault| self.faults.push(format!("{origin}: {fault}"))).ok()
    }

    /// The text, and how users call the place that it is from.
    fn found(&self, name: &str, given: impl FnOnce(&Given) -> Option<String>) -> Option<(String, String)> {
        let flag = self.table.find(name)?;
        if let Some(text) = given(&self.given) {
            return (!text.is_empty()).then(|| (text, format!("--{name}")));
        }
        let set = |variable: &&str| {
            let text = (self.variable)(variable).filter(|text| !text.is_empty())?;
            Some((text, format!("environment variable {variable}")))
        };
        let default = || Some((flag.default?.to_owned(), format!("the default of --{name}")));
        flag.variables.iter().find_map(set).or_else(default)
    }
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| match text.parse::<f64>() {
        Ok(_) => format!("{text:?} is no number of the right size"),
        Err(_) => format!("{text:?} is no number"),
    })
}

/// `host:port`, or `:port` for all addresses of both families, as in Go: `[::]:port`, which is for `serving::listen`.
///
/// # Errors
/// A sentence that shows the form.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let full = if text.starts_with(':') { format!("[::]{text}") } else { text.to_owned() };
    full.parse().map_err(|_| "write it as 127.0.0.1:9402 or :9402".to_owned())
}
