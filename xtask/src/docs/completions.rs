//! Completions of bash, zsh and fish.

use std::fmt::Write as _;

use cattlegrid_config::{OptionStatus, OptionUsage, SUBCOMMANDS};

use super::commands::{Flag, Subcommand, server_options, subcommands};

/// The files and their texts.
pub(super) fn files() -> Result<[(&'static str, String); 3], String> {
    let (options, commands) = (server_options(), subcommands()?);
    Ok([
        ("packaging/completions/cattlegrid.bash", bash(&options, &commands)),
        ("packaging/completions/_cattlegrid", zsh(&options, &commands)),
        ("packaging/completions/cattlegrid.fish", fish(&options, &commands)),
    ])
}

const HEAD: &str = "written by `cargo xtask docs` from the options of the program";

/// How a value is completed.
#[derive(PartialEq, Eq)]
enum Values {
    Files,
    Folders,
    Users,
    Words(Vec<String>),
    Anything,
}

fn values(placeholder: &str, choices: &[&str]) -> Values {
    let name = placeholder.trim_matches(['<', '>']).to_lowercase();
    match &*name {
        "file" => Values::Files,
        "dir" => Values::Folders,
        "user" => Values::Users,
        _ if !choices.is_empty() => Values::Words(choices.iter().map(ToString::to_string).collect()),
        name if name.contains('|') => Values::Words(name.split('|').map(ToOwned::to_owned).collect()),
        _ => Values::Anything,
    }
}

/// Those that are switches of their own, not names of `-o`.
fn switches(options: &[OptionUsage]) -> impl Iterator<Item = &OptionUsage> {
    options.iter().filter(|option| option.extended.is_none())
}

fn extended(options: &[OptionUsage]) -> impl Iterator<Item = (&'static str, &OptionUsage)> {
    options.iter().filter_map(|option| option.extended.map(|name| (name, option)))
}

/// `-p` and `--port`, as far as there are.
fn spellings(short: Option<char>, long: Option<&str>) -> Vec<String> {
    let short = short.map(|letter| format!("-{letter}"));
    short.into_iter().chain(long.map(|name| format!("--{name}"))).collect()
}

/// Files beside options, where a subcommand takes them.
fn takes_files(name: &str) -> bool {
    matches!(name, "check" | "doctor" | "follow" | "objects")
}

/// The server's options beside its own.
fn takes_server_options(name: &str) -> bool {
    name == "doctor"
}

// ---- bash -------------------------------------------------------------------------------------------------

/// The beginning of the generated function: bash divides words at `=`, and replaces only the part behind the
/// last one.
const BASH_HEAD: &str = r#"
_cattlegrid_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur"); }

# $1: -f files, -d directories; $2: what stands before the name and stays.
_cattlegrid_files() {
    local name=${cur#"$2"}
    name=${name#[\"\']}
    mapfile -t COMPREPLY < <(compgen "$1" -P "$2" -- "${name//\\/}")
    compopt -o filenames 2>/dev/null
}

_cattlegrid() {
    local cur prev command=serve words='' at=$COMP_CWORD last=${COMP_WORDS[COMP_CWORD]} before='' IFS=$' \t\n'
    COMPREPLY=()
    cur=$last
    while ((at > 1)) && [[ ${COMP_WORDS[at]} == = || ${COMP_WORDS[at-1]} == = ]]; do
        cur=${COMP_WORDS[--at]}$cur
    done
    prev=${COMP_WORDS[at-1]}
    [[ $last == = ]] && last=''
    if [[ $cur == --*=* ]]; then
        prev=${cur%%=*} before=${cur%%=*}= cur=${cur#*=}
    fi
    _cattlegrid_all
    # Readline has kept what is before the last word.
    before=$before$cur
    if [[ $before == *"$last" && ${#COMPREPLY[@]} -gt 0 ]]; then
        local kept=${before%"$last"} own=${before%"$cur"}
        local -i index
        for index in "${!COMPREPLY[@]}"; do
            COMPREPLY[index]=$own${COMPREPLY[index]}
            COMPREPLY[index]=${COMPREPLY[index]#"$kept"}
        done
    fi
}

_cattlegrid_all() {
    [[ $at -gt 1 && ${COMP_WORDS[1]} != -* ]] && command=${COMP_WORDS[1]}
"#;

fn bash(options: &[OptionUsage], commands: &[Subcommand]) -> String {
    let mut text = format!("# bash completion for cattlegrid: {HEAD}\n{BASH_HEAD}");
    let names: Vec<_> = SUBCOMMANDS.iter().map(|(name, _)| *name).collect();
    let _infallible = writeln!(
        text,
        "    if [[ $at -eq 1 && $before$cur != -* ]]; then\n        _cattlegrid_words '{}'\n        return\n    fi",
        names.join(" ")
    );
    text.push_str("    case $command in\n");
    bash_server(&mut text, options, commands);
    for command in commands.iter().filter(|command| !takes_server_options(command.name)) {
        let _infallible = writeln!(text, "    {})\n        case $prev in", command.name);
        for flag in command.flags.iter().filter(|flag| !flag.value.is_empty()) {
            let pattern = spellings(flag.short, Some(&flag.long)).join("|");
            bash_values(&mut text, "        ", &pattern, &values(&flag.value, &[]));
        }
        text.push_str("        esac\n");
        let _infallible = writeln!(text, "        words='{}'", bash_flags(command));
        if !command.words.is_empty() {
            let _infallible =
                writeln!(text, "        [[ $at -eq 2 ]] && words+=' {}'", command.words.join(" "));
        }
        if takes_files(command.name) {
            text.push_str("        [[ $cur != -* ]] && _cattlegrid_files -f ''\n");
        }
        text.push_str("        ;;\n");
    }
    text.push_str(
        "    esac\n    local -a files=(\"${COMPREPLY[@]}\")\n    _cattlegrid_words \"$words\"\n    COMPREPLY=(\"${files[@]}\" \"${COMPREPLY[@]}\")\n}\n\n\
         complete -F _cattlegrid cattlegrid\n",
    );
    text
}

/// The branch of the server and of what takes its options.
fn bash_server(text: &mut String, options: &[OptionUsage], commands: &[Subcommand]) {
    let others: Vec<_> = commands.iter().filter(|command| takes_server_options(command.name)).collect();
    let patterns: String = others.iter().flat_map(|command| ["|", command.name]).collect();
    let _infallible = writeln!(text, "    serve{patterns})\n        case $prev in");
    for option in switches(options).filter(|option| !option.value.is_empty()) {
        let pattern = spellings(option.short, option.long).join("|");
        if option.long == Some("extended") {
            bash_extended(text, &pattern, options);
        } else {
            bash_values(text, "        ", &pattern, &values(&option.value, option.choices));
        }
    }
    let all: Vec<_> = switches(options)
        .flat_map(|option| spellings(option.short, option.long))
        .chain(["--help-all".to_owned()])
        .collect();
    let _infallible = writeln!(text, "        esac\n        words='{}'", all.join(" "));
    for command in others {
        let own = bash_flags(command);
        let _infallible = writeln!(
            text,
            "        if [[ $command == {} ]]; then\n            [[ $prev == --pid ]] && words='' && return\n            words+=' {own}'\n            \
             [[ $cur != -* ]] && _cattlegrid_files -f ''\n        fi",
            command.name
        );
    }
    text.push_str("        ;;\n");
}

/// `-o`: names with commas between, files behind the `=` of those that take one.
fn bash_extended(text: &mut String, pattern: &str, options: &[OptionUsage]) {
    let spelled = |(name, option): (&str, &OptionUsage)| {
        if option.value.is_empty() { name.to_owned() } else { format!("{name}=") }
    };
    let names: Vec<_> = extended(options).map(spelled).collect();
    let files: Vec<_> = extended(options)
        .filter(|(_, option)| values(&option.value, option.choices) == Values::Files)
        .map(|(name, _)| format!("{name}=*"))
        .collect();
    let _infallible = writeln!(
        text,
        "        {pattern})\n            local head='' piece=${{cur##*,}}\n            [[ $cur == *,* ]] && head=${{cur%,*}},\n            \
         case $piece in\n            {}) _cattlegrid_files -f \"$head${{piece%%=*}}=\" ;;\n            *)\n                \
         compopt -o nospace 2>/dev/null\n                \
         mapfile -t COMPREPLY < <(compgen -P \"$head\" -W '{}' -- \"$piece\") ;;\n            esac\n            return ;;",
        files.join("|"),
        names.join(" ")
    );
}

fn bash_flags(command: &Subcommand) -> String {
    let all: Vec<_> = command.flags.iter().flat_map(|flag| spellings(flag.short, Some(&flag.long))).collect();
    all.join(" ")
}

fn bash_values(text: &mut String, indent: &str, pattern: &str, values: &Values) {
    let generated = match values {
        Values::Files => "_cattlegrid_files -f ''; ".to_owned(),
        Values::Folders => "_cattlegrid_files -d ''; ".to_owned(),
        Values::Users => "mapfile -t COMPREPLY < <(compgen -u -- \"$cur\"); ".to_owned(),
        Values::Words(words) => format!("_cattlegrid_words '{}'; ", words.join(" ")),
        Values::Anything => String::new(),
    };
    let _infallible = writeln!(text, "{indent}{pattern}) {generated}return ;;");
}

// ---- zsh --------------------------------------------------------------------------------------------------

fn zsh(options: &[OptionUsage], commands: &[Subcommand]) -> String {
    let mut text = format!("#compdef cattlegrid\n# zsh completion for cattlegrid: {HEAD}\n\n");
    text.push_str("_cattlegrid_serve() {\n    _arguments -s \"$@\" \\\n");
    for option in switches(options) {
        if option.long == Some("extended") {
            let names: Vec<_> = extended(options)
                .map(|(name, option)| {
                    let value = if option.value.is_empty() { "" } else { ":value:" };
                    format!("'{name}[{}]{value}'", zsh_text(option.brief))
                })
                .collect();
            let _infallible = writeln!(
                text,
                "        '*'{{-o,--extended=}}'[{}]:list:{{_values -s , option {}}}' \\",
                zsh_text(option.brief),
                names.join(" ").replace('\'', "\"")
            );
            continue;
        }
        zsh_option(&mut text, option.short, option.long, (&option.value, option.choices), &zsh_words(option));
    }
    text.push_str("        '--help-all[print the help with all options]'\n}\n\n");
    for command in commands {
        let with = if takes_server_options(command.name) { "_cattlegrid_serve" } else { "_arguments -s" };
        let _infallible = writeln!(text, "_cattlegrid_{}() {{\n    {with} \\", command.name);
        for flag in &command.flags {
            zsh_option(&mut text, flag.short, Some(&flag.long), (&flag.value, &[]), "");
        }
        match (command.words, takes_files(command.name)) {
            ([], false) => text.push_str("        '*: :'\n}\n\n"),
            ([], true) => text.push_str("        '*:file:_files'\n}\n\n"),
            (words, files) => {
                let rest = if files { "_files" } else { "" };
                let _infallible =
                    writeln!(text, "        '1:command:({})' '*:argument:{rest}'\n}}\n", words.join(" "));
            }
        }
    }
    text.push_str("_cattlegrid() {\n    local -a commands=(\n");
    for (name, brief) in SUBCOMMANDS {
        let _infallible = writeln!(text, "        '{name}:{}'", brief.replace('\'', "'\\''"));
    }
    text.push_str(
        "    )\n    if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then\n        _describe command commands\n        return\n    fi\n    \
         local command=serve\n    if [[ $words[2] != -* ]]; then\n        command=$words[2]\n        shift words\n        (( CURRENT-- ))\n    fi\n    \
         (( $+functions[_cattlegrid_$command] )) && _cattlegrid_$command\n}\n\n_cattlegrid \"$@\"\n",
    );
    text
}

fn zsh_words(option: &OptionUsage) -> String {
    if option.standing == OptionStatus::Inert { "without effect".to_owned() } else { zsh_text(option.brief) }
}

fn zsh_option(
    text: &mut String,
    short: Option<char>,
    long: Option<&str>,
    (value, choices): (&str, &[&str]),
    brief: &str,
) {
    let action = match (value.is_empty(), values(value, choices)) {
        (true, _) => String::new(),
        (_, Values::Files) => ":file:_files".to_owned(),
        (_, Values::Folders) => ":directory:_files -/".to_owned(),
        (_, Values::Users) => ":user:_users".to_owned(),
        (_, Values::Words(words)) => format!(":value:({})", words.join(" ")),
        (_, Values::Anything) => format!(":{}:", value.trim_matches(['<', '>']).to_lowercase()),
    };
    let spelt = match (short, long) {
        (Some(short), Some(long)) if value.is_empty() => format!("'*'{{-{short},--{long}}}"),
        (Some(short), Some(long)) => format!("'*'{{-{short}+,--{long}=}}"),
        (Some(short), None) => format!("'*'-{short}"),
        (_, long) => {
            let equals = if value.is_empty() { "" } else { "=" };
            format!("'*'--{}{equals}", long.unwrap_or_default())
        }
    };
    let brief = if brief.is_empty() { String::new() } else { format!("[{brief}]") };
    let quoted = format!("{brief}{action}");
    if quoted.is_empty() {
        let _infallible = writeln!(text, "        {spelt} \\");
    } else {
        let _infallible = writeln!(text, "        {spelt}'{quoted}' \\");
    }
}

/// Text escaped for brackets and quotes of zsh.
fn zsh_text(text: &str) -> String {
    text.replace('\'', "").replace(':', "\\:").replace('[', "(").replace(']', ")")
}

// ---- fish -------------------------------------------------------------------------------------------------

fn fish(options: &[OptionUsage], commands: &[Subcommand]) -> String {
    let mut text = format!("# fish completion for cattlegrid: {HEAD}\n\ncomplete -c cattlegrid -f\n\n");
    text.push_str(
        "function __cattlegrid_command\n    set -l words (commandline -opc)\n    if test (count $words) -gt 1; and not string match -q -- '-*' $words[2]\n        \
         echo $words[2]\n    else\n        echo serve\n    end\nend\n\nfunction __cattlegrid_is\n    contains -- (__cattlegrid_command) $argv\nend\n\n\
         function __cattlegrid_first\n    test (count (commandline -opc)) -eq 1\nend\n\n",
    );
    for (name, brief) in SUBCOMMANDS {
        let _infallible = writeln!(
            text,
            "complete -c cattlegrid -n __cattlegrid_first -a {name} -d '{}'",
            fish_text(brief)
        );
    }
    text.push('\n');
    let others = commands.iter().filter(|command| takes_server_options(command.name));
    let serving = "serve".to_owned() + &others.flat_map(|command| [" ", command.name]).collect::<String>();
    for option in switches(options) {
        let brief = if option.standing == OptionStatus::Inert { "without effect" } else { option.brief };
        let names: Vec<_> = extended(options).map(|(name, _)| name.to_owned()).collect();
        let values = if option.long == Some("extended") {
            Values::Words(names)
        } else {
            values(&option.value, option.choices)
        };
        fish_option(
            &mut text,
            &serving,
            option.short,
            option.long,
            (!option.value.is_empty(), &values),
            brief,
        );
    }
    text.push_str("complete -c cattlegrid -n '__cattlegrid_is serve' -l help-all -d 'print the help with all options'\n");
    for command in commands {
        text.push('\n');
        for Flag { short, long, value } in &command.flags {
            fish_option(
                &mut text,
                command.name,
                *short,
                Some(long),
                (!value.is_empty(), &values(value, &[])),
                "",
            );
        }
        if !command.words.is_empty() {
            let _infallible = writeln!(
                text,
                "complete -c cattlegrid -n '__cattlegrid_is {}' -a '{}'",
                command.name,
                command.words.join(" ")
            );
        }
        if takes_files(command.name) {
            let _infallible =
                writeln!(text, "complete -c cattlegrid -n '__cattlegrid_is {}' -F", command.name);
        }
    }
    text
}

fn fish_option(
    text: &mut String,
    command: &str,
    short: Option<char>,
    long: Option<&str>,
    (takes, values): (bool, &Values),
    brief: &str,
) {
    let mut line = format!("complete -c cattlegrid -n '__cattlegrid_is {command}'");
    if let Some(short) = short {
        let _infallible = write!(line, " -s {short}");
    }
    if let Some(long) = long {
        let _infallible = write!(line, " -l {long}");
    }
    if takes {
        line.push_str(match values {
            Values::Files => " -r -F",
            Values::Folders => " -x -a '(__fish_complete_directories)'",
            Values::Users => " -x -a '(__fish_complete_users)'",
            Values::Words(_) | Values::Anything => " -x",
        });
    }
    if let Values::Words(words) = values {
        let _infallible = write!(line, " -a '{}'", words.join(" "));
    }
    if !brief.is_empty() {
        let _infallible = write!(line, " -d '{}'", fish_text(brief));
    }
    let _infallible = writeln!(text, "{line}");
}

fn fish_text(text: &str) -> String {
    text.replace('\'', "\\'")
}
