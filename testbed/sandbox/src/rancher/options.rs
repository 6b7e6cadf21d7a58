//! The options of a machine: the driver's flags with their defaults, and what somebody wants otherwise.

use anyhow::{Context, Result, bail};
use go_rpc::{Interface, Struct, ToGob, Type, Typed, Value as Gob};
use serde_json::Value;

/// The argument of `SetConfigFromFlags`. Every flag is sent, as rancher-machine does it.
///
/// # Errors
/// When the driver has no flag of a name that is wanted, or a flag is none.
pub(super) fn of_flags(flags: &[Interface], wanted: &[(&str, Value)]) -> Result<Typed> {
    let mut values = Vec::new();
    for flag in flags {
        let Gob::Struct(fields) = &flag.holds.value else { bail!("flag {} is no struct", flag.name) };
        let Some(Gob::String(name)) = fields.get("Name") else { bail!("a flag has no name") };
        let name = name.to_lossy().into_owned();
        let default = match flag.name.as_str() {
            "*mcnflag.BoolFlag" => Gob::Bool(false),
            "*mcnflag.IntFlag" => fields.get("Value").cloned().unwrap_or(Gob::Int(0)),
            "*mcnflag.StringFlag" => fields.get("Value").cloned().unwrap_or_else(|| Gob::from("")),
            other => bail!("flag {name} is of kind {other}"),
        };
        let value = match wanted.iter().find(|(wanted, _)| *wanted == name) {
            Some((_, wanted)) => gob(wanted).with_context(|| format!("flag {name}"))?,
            None => default,
        };
        values.push((name, value));
    }
    if let Some((name, _)) = wanted.iter().find(|(name, _)| values.iter().all(|(flag, _)| flag != name)) {
        bail!("the driver has no flag {name}");
    }
    let values = values.into_iter().map(|(name, value)| (Gob::from(name.as_str()), held(value)));
    let of = Type::structure("RPCFlags", [("Values", Type::map(Type::STRING, Type::INTERFACE))]);
    let flags = Struct::new().with("Values", Gob::Map(values.collect()));
    Ok(Some(Interface::new("*rpcdriver.RPCFlags", of, flags)).to_typed())
}

fn gob(value: &Value) -> Result<Gob> {
    Ok(match value {
        Value::String(text) => Gob::from(text.as_str()),
        Value::Bool(switch) => Gob::Bool(*switch),
        Value::Number(number) => Gob::Int(number.as_i64().context("is no whole number")?),
        other => bail!("{other} is of no kind that flags have"),
    })
}

fn held(value: Gob) -> Gob {
    let (name, of) = match value {
        Gob::Bool(_) => ("bool", Type::BOOL),
        Gob::Int(_) => ("int", Type::INT),
        _ => ("string", Type::STRING),
    };
    Gob::Interface(Some(Box::new(Interface::new(name, of, value))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn flag(kind: &str, name: &str, value: Option<Gob>) -> Interface {
        let fields = Struct::new().with("Name", name);
        let fields = match value {
            Some(value) => fields.with("Value", value),
            None => fields,
        };
        Interface::new(format!("*mcnflag.{kind}"), Type::structure(kind, [("Name", Type::STRING)]), fields)
    }

    #[test]
    fn every_flag_is_sent_with_its_default_or_what_is_wanted() {
        let flags = [
            flag("StringFlag", "harvester-ssh-user", Some(Gob::from("root"))),
            flag("IntFlag", "harvester-cpu-count", Some(Gob::Int(2))),
            flag("BoolFlag", "harvester-enable-efi", None),
        ];
        let options = of_flags(&flags, &[("harvester-cpu-count", json!(4))]).unwrap();
        let Gob::Interface(Some(options)) = options.value else { panic!("{options:?}") };
        let Gob::Struct(fields) = options.holds.value else { panic!("no struct") };
        let Some(Gob::Map(values)) = fields.get("Values") else { panic!("{fields:?}") };
        let told: Vec<_> = values
            .iter()
            .map(|(name, held)| match (name, held) {
                (Gob::String(name), Gob::Interface(Some(held))) => {
                    (name.to_lossy().into_owned(), held.holds.value.clone())
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            told,
            [
                ("harvester-ssh-user".to_owned(), Gob::from("root")),
                ("harvester-cpu-count".to_owned(), Gob::Int(4)),
                ("harvester-enable-efi".to_owned(), Gob::Bool(false)),
            ]
        );
    }

    #[test]
    fn a_flag_that_the_driver_does_not_have_is_named() {
        let error = of_flags(&[], &[("harvester-color", json!("blue"))]).unwrap_err();
        assert_eq!(error.to_string(), "the driver has no flag harvester-color");
    }
}
