//! The values of flags, as rancher-machine sends them or a command line gives them.

use std::collections::BTreeMap;

use go_rpc::{FromGob, Interface, Mismatch, Value};

use crate::flags::{self, FlagType};

/// The name under which rancher-machine registers its options.
const REGISTERED: &str = "*rpcdriver.RPCFlags";

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub enum FlagValue {
    Text(String),
    Number(i64),
    Switch(bool),
    /// Of a type that none of the driver's flags has.
    Other(&'static str),
}

/// Values by the name of their flag, with rancher-machine's own (`swarm-host`, `engine-install-url`, …).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options(BTreeMap<String, FlagValue>);

impl Options {
    /// The defaults of all flags.
    pub fn defaults() -> Self {
        let given = |kind| match kind {
            FlagType::Text(default) => FlagValue::Text(default.to_owned()),
            FlagType::Number(default) => FlagValue::Number(default),
            FlagType::Switch => FlagValue::Switch(false),
        };
        Self(flags::ALL.iter().map(|flag| (flag.name.to_owned(), given(flag.flag_type))).collect())
    }

    /// Sets a value.
    pub fn set(&mut self, name: &str, given: FlagValue) {
        self.0.insert(name.to_owned(), given);
    }

    pub(crate) fn get(&self, name: &str) -> Option<&FlagValue> {
        self.0.get(name)
    }
}

/// The argument of `SetConfigFromFlags`: an interface that holds a pointer to a struct with one map.
impl FromGob for Options {
    fn from_value(value: Value) -> Result<Self, Mismatch> {
        let held: Option<Interface> = FromGob::from_value(value)?;
        let Some(held) = held else { return Ok(Self::default()) };
        let wrong = |value: &Value| Mismatch::new(REGISTERED, value);
        let Value::Struct(mut flags) = held.holds.value else { return Err(wrong(&held.holds.value)) };
        if held.name != REGISTERED {
            return Err(wrong(&Value::Struct(flags)));
        }
        let Some(values) = flags.remove("Values") else { return Ok(Self::default()) };
        let values: BTreeMap<String, Option<Interface>> =
            FromGob::from_value(values).map_err(|mismatch: Mismatch| mismatch.inside("Values"))?;
        let given = |held: Interface| match held.holds.value {
            Value::String(text) => FlagValue::Text(text.to_lossy().into_owned()),
            Value::Int(number) => FlagValue::Number(number),
            Value::Bool(switch) => FlagValue::Switch(switch),
            other => FlagValue::Other(other.describe()),
        };
        Ok(Self(values.into_iter().filter_map(|(name, held)| Some((name, given(held?)))).collect()))
    }
}

/// Reads options. An option that is missing or has another type counts as empty, and gets a note.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    options: &'a Options,
    pub(crate) notes: Vec<String>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(options: &'a Options) -> Self {
        Self { options, notes: vec![] }
    }

    pub(crate) fn text(&mut self, name: &str) -> String {
        match self.options.get(name) {
            Some(FlagValue::Text(text)) => text.clone(),
            other => self.note(name, "text", other),
        }
    }

    pub(crate) fn number(&mut self, name: &str) -> i64 {
        match self.options.get(name) {
            Some(FlagValue::Number(number)) => *number,
            other => self.note(name, "a number", other),
        }
    }

    pub(crate) fn switch(&mut self, name: &str) -> bool {
        match self.options.get(name) {
            Some(FlagValue::Switch(switch)) => *switch,
            other => self.note(name, "a switch", other),
        }
    }

    fn note<T: Default>(&mut self, name: &str, wanted: &str, found: Option<&FlagValue>) -> T {
        let found = match found {
            None => "nothing",
            Some(FlagValue::Text(_)) => "text",
            Some(FlagValue::Number(_)) => "a number",
            Some(FlagValue::Switch(_)) => "a switch",
            Some(FlagValue::Other(kind)) => kind,
        };
        self.notes.push(format!("option {name}: expected {wanted}, got {found}; taken as not given"));
        T::default()
    }
}

#[cfg(test)]
mod tests {
    use go_rpc::{Decoder, Limits, next_value};

    use super::*;

    #[test]
    fn the_recorded_options_of_rancher_machine_are_read() {
        let session = include_str!("../../go-rpc/tests/vectors/04-session-create.json");
        let session: serde_json::Value = serde_json::from_str(session).unwrap();
        // type descriptors come with the first value of their type, so everything before is read too
        let (mut decoder, mut found) = (Decoder::new(Limits::default()), None);
        for step in session
            .as_array()
            .unwrap()
            .iter()
            .filter(|step| step.get("argument").is_some() || step.get("call").is_some())
        {
            let hex = step["request"].as_str().unwrap();
            let bytes: Vec<u8> = (0..hex.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
                .collect();
            let mut input = &bytes[..];
            next_value(&mut decoder, &mut input).unwrap().expect("a header");
            let argument = next_value(&mut decoder, &mut input).unwrap().expect("an argument");
            if step.get("argument").is_some() {
                found = Some((Options::from_value(argument.value).unwrap(), step["argument"].clone()));
            }
        }
        let (options, told) = found.expect("the session sets options");
        assert_eq!(
            options.0.len(),
            told.as_object().unwrap().values().filter(|value| !value.is_null()).count()
        );
        for (name, value) in told.as_object().unwrap() {
            let expected = match value {
                serde_json::Value::String(text) => Some(FlagValue::Text(text.clone())),
                serde_json::Value::Number(number) => Some(FlagValue::Number(number.as_i64().unwrap())),
                serde_json::Value::Bool(switch) => Some(FlagValue::Switch(*switch)),
                serde_json::Value::Array(_) => Some(FlagValue::Other("list")),
                _ => None,
            };
            assert_eq!(options.get(name), expected.as_ref(), "{name}");
        }
    }

    #[test]
    fn what_is_missing_or_of_another_kind_counts_as_empty_and_is_noted() {
        let mut options = Options::default();
        options.set(flags::CPU_COUNT, FlagValue::Text("four".into()));
        let mut reader = Reader::new(&options);
        assert_eq!((reader.number(flags::CPU_COUNT), reader.text(flags::USER_DATA)), (0, String::new()));
        assert_eq!(
            reader.notes,
            [
                "option harvester-cpu-count: expected a number, got text; taken as not given",
                "option harvester-user-data: expected text, got nothing; taken as not given",
            ]
        );
    }
}
