//! What a call of a tool needs permission for, as the server's tools say it.

use serde_json::{Map, Value, json};

use super::{
    diff,
    shell::{any_arguments, commands},
};
use crate::test_util::ScriptedTool;

/// Commands whose arguments are paths.
const FILE_COMMANDS: [&str; 12] =
    ["cat", "cd", "chdir", "chmod", "chown", "cp", "mkdir", "mv", "popd", "pushd", "rm", "touch"];
/// Commands that only change the directory, which needs no permission of its own.
const DIRECTORY_COMMANDS: [&str; 4] = ["cd", "chdir", "popd", "pushd"];

/// One thing that a call needs permission for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Access {
    pub(super) permission: String,
    /// What the call is about: commands, paths, addresses.
    pub(super) patterns: Vec<String>,
    /// What an "always" would allow from then on.
    pub(super) always: Vec<String>,
    pub(super) metadata: Value,
}

impl Access {
    pub(super) fn new(permission: &str, pattern: &str, always: &str, metadata: Value) -> Self {
        let (permission, always) = (permission.to_owned(), vec![always.to_owned()]);
        Self { permission, patterns: vec![pattern.to_owned()], always, metadata }
    }
}

/// Where a call is made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) directory: &'a str,
    /// The directory of the project, which paths are given relative to.
    pub(super) root: &'a str,
    pub(super) home: &'a str,
}

impl Place<'_> {
    /// What the server asks for before the call runs, in order. `written` is what the session has last written to a file.
    pub(super) fn needed_by(
        &self,
        tool: &ScriptedTool,
        written: impl Fn(&str) -> Option<String>,
    ) -> Vec<Access> {
        let text = |field: &str| tool.args[field].as_str().unwrap_or_default();
        let given = |fields: &[&str]| -> Value {
            let given = fields.iter().filter(|field| !tool.args[**field].is_null());
            given.map(|field| ((*field).to_owned(), tool.args[*field].clone())).collect::<Map<_, _>>().into()
        };
        let line = |text: &str| if text.is_empty() { String::new() } else { format!("{text}\n") };
        match tool.name.as_str() {
            "question" | "invalid" => Vec::new(),
            "bash" => self.needed_by_command(text("command"), text("workdir")),
            "read" => {
                let file = self.absolute(text("filePath"));
                let read = Access::new("read", &self.relative(&file), "*", json!({}));
                self.outside(&file).into_iter().chain([read]).collect()
            }
            "edit" | "write" => {
                let file = self.absolute(text("filePath"));
                let diff = match tool.name.as_str() {
                    // Of the lines around them nothing is known.
                    "edit" => diff::patch(&file, &line(text("oldString")), &line(text("newString"))),
                    _ => diff::patch(&file, &written(text("filePath")).unwrap_or_default(), text("content")),
                };
                let metadata = json!({"filepath": file, "diff": diff});
                let edit = Access::new("edit", &self.relative(&file), "*", metadata);
                self.outside(&file).into_iter().chain([edit]).collect()
            }
            name @ ("glob" | "grep") => {
                let search = Access::new(name, text("pattern"), "*", given(&["pattern", "path", "include"]));
                let path = Some(text("path")).filter(|path| !path.is_empty());
                let outside = path.and_then(|path| self.outside(&self.absolute(path)));
                [search].into_iter().chain(outside).collect()
            }
            "webfetch" => {
                let mut metadata = given(&["url", "format", "timeout"]);
                if metadata["format"].is_null() {
                    metadata["format"] = "markdown".into();
                }
                vec![Access::new("webfetch", text("url"), "*", metadata)]
            }
            "task" => {
                let metadata = given(&["description", "subagent_type"]);
                vec![Access::new("task", text("subagent_type"), "*", metadata)]
            }
            "skill" => vec![Access::new("skill", text("name"), text("name"), json!({}))],
            name => vec![Access::new(name, "*", "*", json!({}))],
        }
    }

    fn needed_by_command(&self, line: &str, workdir: &str) -> Vec<Access> {
        let here = resolve(self.directory, workdir);
        let (mut directories, mut patterns, mut always) = (Vec::new(), Vec::new(), Vec::new());
        for command in commands(line) {
            let Some((name, arguments)) = command.words.split_first() else { continue };
            if FILE_COMMANDS.contains(&name.as_str()) {
                let paths = arguments.iter().filter_map(|argument| self.path_of(name, argument, &here));
                for path in paths.filter(|path| !self.contains(path)) {
                    add(&mut directories, directory_of(&path));
                }
            }
            if !DIRECTORY_COMMANDS.contains(&name.as_str()) {
                add(&mut patterns, command.text);
                add(&mut always, any_arguments(&command.words));
            }
        }
        if !self.contains(&here) {
            add(&mut directories, here);
        }
        let mut needed = Vec::new();
        if !directories.is_empty() {
            let below: Vec<String> = directories.iter().map(|directory| resolve(directory, "*")).collect();
            let metadata = json!({"command": line, "directories": directories, "patterns": below});
            let permission = "external_directory".to_owned();
            needed.push(Access { permission, patterns: below.clone(), always: below, metadata });
        }
        if !patterns.is_empty() {
            let metadata = json!({"command": line});
            needed.push(Access { permission: "bash".to_owned(), patterns, always, metadata });
        }
        needed
    }

    /// The path that an argument of a command stands for, if it is one and plain.
    fn path_of(&self, command: &str, argument: &str, here: &str) -> Option<String> {
        if argument.starts_with('-') || (command == "chmod" && argument.starts_with('+')) {
            return None;
        }
        let quote = argument.chars().next().filter(|first| ['\'', '"'].contains(first));
        let bare =
            quote.and_then(|quote| argument.strip_prefix(quote)?.strip_suffix(quote)).unwrap_or(argument);
        let path = match bare.strip_prefix('~') {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{}{rest}", self.home),
            _ => bare.to_owned(),
        };
        let path = path.split(['*', '?', '[']).next().unwrap_or_default();
        let is_plain = !path.is_empty() && !path.contains(['$', '`']) && !path.starts_with('(');
        is_plain.then(|| resolve(here, path))
    }

    /// What a file outside of the project needs beforehand.
    fn outside(&self, file: &str) -> Option<Access> {
        if self.contains(file) {
            return None;
        }
        let directory = directory_of(file);
        let below = resolve(&directory, "*");
        let metadata = json!({"filepath": file, "parentDir": directory});
        Some(Access::new("external_directory", &below, &below, metadata))
    }

    fn contains(&self, path: &str) -> bool {
        let path = resolve("/", path);
        let is_below = |directory: &str| {
            path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        is_below(self.directory) || is_below(self.root)
    }

    /// An absolute path as it is, another one below the directory.
    fn absolute(&self, path: &str) -> String {
        if path.starts_with('/') { path.to_owned() } else { resolve(self.directory, path) }
    }

    /// A path as seen from the project's directory.
    fn relative(&self, path: &str) -> String {
        let path = resolve("/", path);
        let parts = |path: &str| path.split('/').skip(1).map(str::to_owned).collect::<Vec<_>>();
        let (from, to) = (parts(self.root), parts(&path));
        let n_common = from.iter().zip(&to).take_while(|(from, to)| from == to).count();
        let up = from[n_common..].iter().map(|_| "..");
        up.chain(to[n_common..].iter().map(String::as_str)).collect::<Vec<_>>().join("/")
    }
}

/// The path if it is a directory of this machine, else the directory that it would be in.
fn directory_of(path: &str) -> String {
    if std::path::Path::new(path).is_dir() {
        return path.to_owned();
    }
    match path.trim_end_matches('/').rsplit_once('/') {
        Some(("", _)) | None => "/".to_owned(),
        Some((directory, _)) => directory.to_owned(),
    }
}

/// A path below a directory, or an absolute one, without dots.
pub(super) fn resolve(directory: &str, path: &str) -> String {
    let base = if path.starts_with('/') { "" } else { directory };
    let mut parts: Vec<&str> = Vec::new();
    for part in base.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

fn add(list: &mut Vec<String>, item: String) {
    if !list.contains(&item) {
        list.push(item);
    }
}
