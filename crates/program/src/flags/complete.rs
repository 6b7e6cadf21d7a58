//! What a shell may complete a command line with, from the tables that the programs parse with. Pure.

use super::{Flag, FlagType, Table};

/// One command of a program that has several.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// The words that choose it: `["cloud-config", "generate"]`.
    pub words: &'static [&'static str],
    pub table: Table,
}

/// The answer to a shell, in the form of cobra's `__complete`, which kubectl asks plugins for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// With what each means.
    pub candidates: Vec<(String, String)>,
    /// The shell may offer its files too.
    pub files: bool,
}

impl Completion {
    /// A line for each candidate, a tab before its meaning; then cobra's directive: 0, or 4 for no files.
    pub fn text(&self) -> String {
        let line = |(candidate, meaning): &(String, String)| format!("{candidate}\t{meaning}\n");
        let lines: String = self.candidates.iter().map(line).collect();
        format!("{lines}:{}\n", if self.files { 0 } else { 4 })
    }
}

/// Completes the last of these words, which may be empty; they stand after the program's name.
pub fn complete(commands: &[Command], words: &[String]) -> Completion {
    let (last, before) = words.split_last().map_or(("", words), |(last, before)| (last.as_str(), before));
    let is_begun = |command: &&Command| {
        command.words.len() <= before.len()
            && command.words.iter().zip(before).all(|(word, given)| word == given)
    };
    match commands.iter().find(is_begun) {
        Some(command) => of_flags(&command.table, &before[command.words.len()..], last),
        None => of_words(commands, before, last),
    }
}

fn of_words(commands: &[Command], before: &[String], last: &str) -> Completion {
    let mut candidates: Vec<(String, String)> = Vec::new();
    for command in commands {
        let is_path = command.words.iter().zip(before).all(|(word, given)| word == given);
        let Some(next) = command.words.get(before.len()).filter(|next| is_path && next.starts_with(last))
        else {
            continue;
        };
        if candidates.iter().any(|(known, _)| known == next) {
            continue;
        }
        let is_whole = command.words.len() == before.len() + 1;
        let meaning = if is_whole { first_sentence(command.table.about) } else { String::new() };
        candidates.push(((*next).to_owned(), meaning));
    }
    Completion { candidates, files: false }
}

fn of_flags(table: &Table, before: &[String], last: &str) -> Completion {
    let named = |text: &str| table.find(text.strip_prefix("--")?.split('=').next()?);
    // the value of the flag before it, or behind its own equals sign
    let open = before.last().filter(|text| !text.contains('=')).and_then(|text| named(text));
    let is_value = |flag: &&Flag| flag.flag_type == FlagType::Value;
    let own = if last.contains('=') { named(last) } else { None };
    if let Some(flag) = open.filter(is_value).or(own) {
        return Completion { candidates: Vec::new(), files: matches!(flag.value_name, "FILE" | "PATH") };
    }
    if !last.starts_with('-') {
        return Completion { candidates: Vec::new(), files: table.program.contains("[FILE]") };
    }
    let flags = table.shown().filter(|flag| format!("--{}", flag.name).starts_with(last));
    let candidates = flags.map(|flag| (format!("--{}", flag.name), flag.help.to_owned())).collect();
    Completion { candidates, files: false }
}

fn first_sentence(text: &str) -> String {
    text.split_inclusive(". ").next().unwrap_or_default().trim_end().to_owned()
}

/// The shells that there is a script for.
pub const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// A script that lets this shell ask the program of this name, which answers `__complete WORD…`.
pub fn script(shell: &str, program: &str) -> Option<String> {
    let function = program.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    let text = match shell {
        "bash" => BASH,
        "zsh" => ZSH,
        "fish" => FISH,
        _ => return None,
    };
    Some(text.replace("FUNCTION", &function).replace("PROGRAM", program))
}

// bash splits words at "=": they are put together again from the line
const BASH: &str = r#"# bash completion for PROGRAM: source <(PROGRAM completion bash)
_FUNCTION() {
    local line words answer directive candidate
    line=${COMP_LINE:0:COMP_POINT}
    read -ra words <<<"$line"
    [[ $line == *" " ]] && words+=("")
    answer=$(PROGRAM __complete "${words[@]:1}" 2>/dev/null) || return
    directive=${answer##*:}
    COMPREPLY=()
    while IFS= read -r candidate; do
        candidate=${candidate%%$'\t'*}
        [[ -n $candidate && $candidate != :* ]] && COMPREPLY+=("$candidate")
    done <<<"$answer"
    if [[ $directive == 0 ]]; then
        while IFS= read -r candidate; do COMPREPLY+=("$candidate"); done < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]#=}")
    fi
    return 0
}
complete -F _FUNCTION PROGRAM
"#;

const ZSH: &str = r#"#compdef PROGRAM
# zsh completion for PROGRAM: source <(PROGRAM completion zsh)
_FUNCTION() {
    local answer line
    local -a candidates
    answer=$(PROGRAM __complete "${(@)words[2,CURRENT]}" 2>/dev/null) || return
    for line in "${(@f)answer}"; do
        [[ -n $line && $line != :* ]] && candidates+=("${${line//:/\\:}/$'\t'/:}")
    done
    (( $#candidates )) && _describe PROGRAM candidates
    [[ ${answer##*:} == 0 ]] && _files
    return 0
}
compdef _FUNCTION PROGRAM
"#;

const FISH: &str = r"# fish completion for PROGRAM: PROGRAM completion fish | source
function __FUNCTION
    set -l words (commandline -opc) (commandline -ct)
    for line in (PROGRAM __complete $words[2..-1] 2>/dev/null)
        switch $line
            case ':0'
                __fish_complete_path (commandline -ct)
            case ':*'
            case '*'
                echo $line
        end
    end
end
complete -c PROGRAM -f -a '(__FUNCTION)'
";

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const GENERATE: Table = Table {
        program: "greeter make ACCOUNT",
        about: "Makes one. And more.",
        flags: &[
            Flag::value("kubeconfig", "FILE", "which"),
            Flag::value("life", "DURATION", "how long"),
            Flag::switch("keep", "keep it"),
            Flag::switch("secret", "x").hidden(),
        ],
    };
    const COMMANDS: &[Command] = &[
        Command { words: &["config", "make"], table: GENERATE },
        Command {
            words: &["config", "look"],
            table: Table { program: "greeter look [FILE]", about: "Looks.", flags: &[] },
        },
        Command {
            words: &["status"],
            table: Table { program: "greeter status", about: "Shows.", flags: &[] },
        },
    ];

    #[rstest]
    #[case::nothing(&[], &["config", "status"], false)]
    #[case::an_empty_word(&[""], &["config", "status"], false)]
    #[case::a_beginning(&["st"], &["status"], false)]
    #[case::a_command_of_two_words(&["config", ""], &["make", "look"], false)]
    #[case::flags(&["config", "make", "--"], &["--kubeconfig", "--life", "--keep", "--help", "--version"], false)]
    #[case::flags_after_words(&["config", "make", "demo", "--k"], &["--kubeconfig", "--keep"], false)]
    #[case::a_file(&["config", "make", "--kubeconfig", ""], &[], true)]
    #[case::a_file_behind_the_sign(&["config", "make", "--kubeconfig=a"], &[], true)]
    #[case::a_value(&["config", "make", "--life", ""], &[], false)]
    #[case::after_a_switch(&["config", "make", "--keep", "--l"], &["--life"], false)]
    #[case::a_word_that_is_a_file(&["config", "look", ""], &[], true)]
    #[case::a_name(&["config", "make", ""], &[], false)]
    #[case::no_such_command(&["nope", ""], &[], false)]
    fn a_shell_is_offered_what_the_program_takes(
        #[case] words: &[&str],
        #[case] expected: &[&str],
        #[case] files: bool,
    ) {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        let answer = complete(COMMANDS, &words);
        let candidates: Vec<_> = answer.candidates.iter().map(|(candidate, _)| candidate.as_str()).collect();
        assert_eq!((candidates.as_slice(), answer.files), (expected, files));
    }

    #[test]
    fn the_answer_has_the_form_that_kubectl_reads() {
        let answer = complete(COMMANDS, &["config".to_owned(), "m".to_owned()]);
        assert_eq!(answer.text(), "make\tMakes one.\n:4\n");
        assert_eq!(Completion { candidates: vec![], files: true }.text(), ":0\n");
    }

    #[test]
    fn each_shell_has_a_script_that_names_the_program_and_no_placeholder() {
        for shell in SHELLS {
            let script = script(shell, "kubectl-harvester").unwrap();
            assert!(script.contains("kubectl-harvester __complete") && script.contains("_kubectl_harvester"));
            assert!(!script.contains("PROGRAM") && !script.contains("FUNCTION"));
        }
        assert_eq!(script("csh", "x"), None);
    }
}
