//! Command lines as the server reads them before it asks: which commands there are, and which words of them say what they are.
//!
//! The server has a parser of the shell's language. This knows quotes, separators, groups, substitutions, loops and redirections, which is
//! enough for commands as models write them; here-documents it does not know.

/// One command of a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShellCommand {
    /// As it is written, with assignments before it and redirections.
    pub(super) text: String,
    /// Its name and its arguments.
    pub(super) words: Vec<String>,
}

/// Words before a command that belong to a loop or a condition.
const OPENERS: [&str; 9] = ["do", "then", "else", "elif", "if", "while", "until", "!", "{"];
/// First words of what is no command of its own.
const NOT_COMMANDS: [&str; 17] = [
    "for", "select", "case", "done", "fi", "esac", "}", "[", "[[", "function", "declare", "typeset",
    "export", "readonly", "local", "unset", "in",
];

/// The commands of a line, in order; one inside a substitution comes after the one that it is an argument of.
pub(super) fn commands(line: &str) -> Vec<ShellCommand> {
    let mut found = Vec::new();
    for segment in split(line) {
        found.extend(command(&segment.text));
        for inner in &segment.substituted {
            found.extend(commands(inner));
        }
    }
    found
}

#[derive(Default)]
struct Segment {
    text: String,
    substituted: Vec<String>,
}

/// What stands between separators.
fn split(line: &str) -> Vec<Segment> {
    let mut segments = vec![Segment::default()];
    let mut rest = line.chars().peekable();
    let mut quote = None;
    let mut before = ' ';
    while let Some(letter) = rest.next() {
        let last = segments.len() - 1;
        let segment = &mut segments[last];
        let is_substitution = letter == '`' || (letter == '$' && rest.peek() == Some(&'('));
        match letter {
            '\\' if quote != Some('\'') => {
                segment.text.push(letter);
                segment.text.extend(rest.next());
            }
            _ if is_substitution && quote != Some('\'') => {
                segment.text.push(letter);
                let inner = if letter == '`' {
                    rest.by_ref().take_while(|letter| *letter != '`').collect()
                } else {
                    segment.text.extend(rest.next());
                    until_closed(&mut rest)
                };
                segment.text.push_str(&inner);
                segment.text.push(if letter == '`' { '`' } else { ')' });
                segment.substituted.push(inner);
            }
            '\'' | '"' if quote.is_none() || quote == Some(letter) => {
                quote = if quote.is_none() { Some(letter) } else { None };
                segment.text.push(letter);
            }
            _ if quote.is_some() => segment.text.push(letter),
            '#' if before.is_whitespace() => while rest.next_if(|letter| *letter != '\n').is_some() {},
            // Of `2>&1` and `&>`.
            '&' if before == '>' || rest.peek() == Some(&'>') => segment.text.push(letter),
            ';' | '|' | '&' | '\n' | '(' | ')' => segments.push(Segment::default()),
            _ => segment.text.push(letter),
        }
        before = letter;
    }
    segments
}

/// What stands before the parenthesis that closes.
fn until_closed(rest: &mut impl Iterator<Item = char>) -> String {
    let mut n_open = 1;
    rest.take_while(|letter| {
        n_open += i32::from(*letter == '(') - i32::from(*letter == ')');
        n_open > 0
    })
    .collect()
}

fn command(text: &str) -> Option<ShellCommand> {
    let mut text = text.trim();
    while let Some((first, rest)) = text.split_once(char::is_whitespace)
        && OPENERS.contains(&first)
    {
        text = rest.trim_start();
    }
    let mut words = words(text).into_iter().skip_while(|word| is_assignment(word)).peekable();
    let name = words.peek()?;
    if NOT_COMMANDS.contains(&name.as_str()) || OPENERS.contains(&name.as_str()) {
        return None;
    }
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        let target = word.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '&');
        if target.starts_with(['<', '>']) {
            if target.trim_start_matches(['<', '>', '&', '|']).is_empty() {
                words.next();
            }
            continue;
        }
        kept.push(word);
    }
    (!kept.is_empty()).then(|| ShellCommand { text: text.to_owned(), words: kept })
}

fn is_assignment(word: &str) -> bool {
    let Some((name, _)) = word.split_once('=') else { return false };
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    name.starts_with(|letter: char| is_letter(letter) && !letter.is_ascii_digit())
        && name.chars().all(is_letter)
}

/// What stands between blanks that are not quoted, quotes and all.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    let mut n_open = 0;
    for letter in text.chars() {
        match letter {
            '\'' | '"' if quote == Some(letter) => quote = None,
            '\'' | '"' if quote.is_none() => quote = Some(letter),
            '(' => n_open += 1,
            ')' => n_open -= 1,
            _ => {}
        }
        let last = words.len() - 1;
        if letter.is_whitespace() && quote.is_none() && n_open == 0 {
            words.push(String::new());
        } else {
            words[last].push(letter);
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Commands that two words name, as the server counts them.
const TWO_WORDS: &str = "bazel brew bun cargo cdk cf cmake composer consul crictl deno docker eksctl firebase flyctl git go gradle helm heroku \
    hugo ip kind kubectl kustomize make mc minikube mongosh mysql mvn ng npm nvm nx openssl pip pipenv pnpm poetry podman psql pulumi pyenv \
    python rake rbenv redis-cli rustup serverless skaffold sls sst swift systemctl terraform tmux turbo ufw vault vercel volta wp yarn";
/// Commands that three words name.
const THREE_WORDS: &str = "aws,az,bun run,bun x,cargo add,cargo run,consul kv,deno task,doctl,docker builder,docker compose,docker container,\
    docker image,docker network,docker volume,eksctl create,gcloud,gh,git config,git remote,git stash,ip addr,ip link,ip netns,ip route,\
    kind create,kubectl kustomize,kubectl rollout,mc admin,npm exec,npm init,npm run,npm view,openssl req,openssl x509,pnpm dlx,pnpm exec,\
    pnpm run,podman container,podman image,pulumi stack,sfdx,terraform workspace,vault auth,vault kv,yarn dlx,yarn run";

/// What "always" covers: the words that name the command, with any arguments.
pub(super) fn any_arguments(words: &[String]) -> String {
    let is_any =
        |list: &str, between: char, wanted: &str| list.split(between).any(|listed| listed.trim() == wanted);
    let names_three = (1..=2).any(|n| words.len() >= n && is_any(THREE_WORDS, ',', &words[..n].join(" ")));
    let n_words = match words.first() {
        _ if names_three => 3,
        Some(name) if is_any(TWO_WORDS, ' ', name) => 2,
        _ => 1,
    };
    format!("{} *", words[..n_words.min(words.len())].join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_read_as_on_the_server() {
        // As a real server has asked for them.
        for (line, patterns, always) in [
            ("touch ask1", &["touch ask1"][..], &["touch *"][..]),
            ("ls", &["ls"], &["ls *"]),
            ("npm run build", &["npm run build"], &["npm run build *"]),
            (
                "echo a && git commit -m x | wc -l; ls",
                &["echo a", "git commit -m x", "wc -l", "ls"],
                &["echo *", "git commit *", "wc *", "ls *"],
            ),
            ("FOO=1 touch v", &["FOO=1 touch v"], &["touch *"]),
            ("(touch w)", &["touch w"], &["touch *"]),
            ("touch x > out.txt 2>&1", &["touch x > out.txt 2>&1"], &["touch *"]),
            ("for i in 1 2; do touch $i; done", &["touch $i"], &["touch *"]),
            ("echo $(touch sub)", &["echo $(touch sub)", "touch sub"], &["echo *", "touch *"]),
            (
                "touch \"a b\" ; echo \"x;y | z\"",
                &["touch \"a b\"", "echo \"x;y | z\""],
                &["touch *", "echo *"],
            ),
            ("echo a # touch c", &["echo a"], &["echo *"]),
            ("bash -c 'rm x'", &["bash -c 'rm x'"], &["bash *"]),
            ("", &[], &[]),
        ] {
            let found = commands(line);
            let texts: Vec<&str> = found.iter().map(|command| command.text.as_str()).collect();
            assert_eq!(texts, patterns, "{line}");
            let covered: Vec<String> = found.iter().map(|command| any_arguments(&command.words)).collect();
            assert_eq!(covered, always, "{line}");
        }
    }

    #[test]
    fn words_are_arguments_without_redirections() {
        let words = |line: &str| commands(line).into_iter().map(|command| command.words).collect::<Vec<_>>();
        assert_eq!(words("cat 'a b' /x >out 2> /dev/null"), [["cat", "'a b'", "/x"]]);
        assert_eq!(words("if [ -e x ]; then rm x; fi"), [["rm", "x"]]);
    }
}
