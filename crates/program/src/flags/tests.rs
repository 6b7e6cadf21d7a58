use std::time::Duration;

use rstest::rstest;

use super::*;

const TABLE: Table = Table {
    program: "greeter",
    about: "Greets people.",
    flags: &[
        Flag::value("cluster-name", "NAME", "the cluster").default("kubernetes").env(&["CLUSTER", "OTHER"]),
        Flag::value("feature-gates", "LIST", "gates"),
        Flag::value("retry-period", "DURATION", "between two tries").default("2s"),
        Flag::value("port", "PORT", "where to listen"),
        Flag::value("v", "LEVEL", "how much is logged"),
        Flag::switch("leader-elect", "act only with the Lease").default("true"),
        Flag::switch("debug", "more"),
        Flag::value("secret", "X", "for tests").hidden(),
        Flag::ignored("profiling", FlagType::Switch),
    ],
};

fn words(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

fn reader(args: &[&str], environment: &'static [(&str, &str)]) -> Reader<'static> {
    let variable =
        |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    TABLE.read(&words(args), variable)
}

#[rstest]
#[case::equals(&["--cluster-name=prod"], "cluster-name", Some("prod"))]
#[case::two_words(&["--cluster-name", "prod"], "cluster-name", Some("prod"))]
#[case::underscores(&["--cluster_name=prod"], "cluster-name", Some("prod"))]
#[case::one_dash(&["-cluster-name=prod"], "cluster-name", Some("prod"))]
#[case::value_with_equals(&["--feature-gates=A=true,B=false"], "feature-gates", Some("A=true,B=false"))]
#[case::value_with_dash(&["--feature-gates", "-service"], "feature-gates", Some("-service"))]
#[case::last_wins(&["--v=2", "-v", "4"], "v", Some("4"))]
#[case::verbosity(&["-v=3"], "v", Some("3"))]
// docs/contract/cloud-controller-manager.md#S7
#[case::verbosity_joined(&["-v5"], "v", Some("5"))]
#[case::switch(&["--leader-elect"], "leader-elect", Some("true"))]
#[case::switch_off(&["--leader-elect=false"], "leader-elect", Some("false"))]
#[case::empty(&["--cluster-name="], "cluster-name", Some(""))]
#[case::help(&["-h"], "help", Some("true"))]
#[case::ignored(&["--profiling=false"], "profiling", Some("false"))]
#[case::absent(&[], "cluster-name", None)]
fn every_form_is_read(#[case] args: &[&str], #[case] name: &str, #[case] expected: Option<&str>) {
    let (given, faults) = TABLE.parse(&words(args));
    assert_eq!((given.last(name), faults), (expected, vec![]));
}

#[test]
fn every_fault_is_told() {
    let args = ["--nope", "--leader-elect=maybe", "stray", "--cluster-name"];
    let (given, faults) = TABLE.parse(&words(&args));
    assert_eq!(given, Given::default());
    assert_eq!(
        faults,
        [
            "unknown flag: --nope",
            "--leader-elect=maybe: use true or false",
            "greeter does not take any arguments, got \"stray\"",
            "flag needs an argument: --cluster-name",
        ]
    );
}

#[rstest]
#[case::flag(&["--cluster-name=a"], &[("CLUSTER", "b")], Some("a"))]
#[case::first_variable(&[], &[("CLUSTER", "b"), ("OTHER", "c")], Some("b"))]
#[case::an_empty_variable_is_none(&[], &[("CLUSTER", ""), ("OTHER", "c")], Some("c"))]
#[case::default(&[], &[], Some("kubernetes"))]
#[case::an_empty_flag_is_nothing(&["--cluster-name="], &[("CLUSTER", "b")], None)]
fn a_value_is_the_flags_else_the_environments_else_the_tables(
    #[case] args: &[&str],
    #[case] environment: &'static [(&str, &str)],
    #[case] expected: Option<&str>,
) {
    assert_eq!(reader(args, environment).text("cluster-name").as_deref(), expected);
}

#[test]
fn values_are_checked_and_their_origin_is_named() {
    let mut reader = reader(&["--port=99999", "--retry-period=soon"], &[("CLUSTER", "x")]);
    assert_eq!(reader.number::<u16>("port", 80), 80);
    assert_eq!(reader.duration("retry-period", Duration::from_secs(1)), Duration::from_secs(1));
    reader.read("cluster-name", (), |text| Err(format!("{text:?} is no cluster")));
    assert_eq!(
        reader.finish(()).unwrap_err(),
        [
            "--port: \"99999\" is no number of the right size",
            "--retry-period: \"soon\" is no duration: use a number with a unit, such as 15s or 1m30s",
            "environment variable CLUSTER: \"x\" is no cluster",
        ]
    );
}

#[test]
fn a_list_is_repeated_or_has_commas_and_each_wrong_item_is_told() {
    let mut reader = reader(&["--feature-gates=1, 2,", "--feature-gates", "x,3,y"], &[]);
    let number = |text: &str| text.parse::<u8>().map_err(|_| format!("{text:?} is no number"));
    assert_eq!(reader.list("feature-gates", number), [1, 2, 3]);
    assert_eq!(reader.finish(()).unwrap_err().len(), 2);
}

#[test]
fn switches_have_defaults_too() {
    assert!(reader(&[], &[]).is_on("leader-elect") && !reader(&[], &[]).is_on("debug"));
    assert!(!reader(&["--leader-elect=f"], &[]).is_on("leader-elect"));
}

#[test]
fn help_and_document_list_every_flag_with_what_it_means() {
    let help = TABLE.help();
    assert!(help.starts_with("Greets people.\n\nUsage: greeter [flags]\n"), "{help}");
    assert!(help.contains("  --cluster-name NAME"), "{help}");
    assert!(help.contains("the cluster [env: CLUSTER, OTHER] [default: kubernetes]\n"), "{help}");
    assert!(help.contains("  --profiling\n") && !help.contains("secret"), "{help}");
    let document = TABLE.markdown();
    let line = "| `--cluster-name=NAME` | `CLUSTER`, `OTHER` | `kubernetes` | the cluster |\n";
    assert!(document.contains(line), "{document}");
    assert!(
        document.ends_with("\nTaken and ignored: `--profiling`.\n") && !document.contains("secret"),
        "{document}"
    );
}

#[test]
fn words_are_told_from_the_values_of_flags() {
    let args = ["--port", "80", "generate", "--debug", "demo", "--cluster-name=x", "vms", "--nope", "y"];
    let (given, flags) = TABLE.split(words(&args));
    assert_eq!(given, ["generate", "demo", "vms", "y"]);
    assert_eq!(flags, ["--port", "80", "--debug", "--cluster-name=x", "--nope"]);
    assert_eq!(TABLE.split(words(&["--port"])).1, ["--port"]);
}
