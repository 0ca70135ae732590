//! A subset of Go's `text/template` for manifests: fields, `if`, `with`, `range`, `else`, comments, and `-` that trims
//! white space. Functions, variables and pipelines are refused.

use serde_json::Value;

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub(super) struct Error {
    line: usize,
    problem: Problem,
}

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
enum Problem {
    #[error("{{{{ without }}}}")]
    Unclosed,
    #[error("{{{{{0}}}}} is not supported: fields, if, with, range, else and end are")]
    Unsupported(String),
    #[error("{{{{{0}}}}} without if, with or range")]
    Stray(String),
    #[error("{{{{{0}}}}} has no {{{{end}}}}")]
    NoEnd(String),
    #[error("there is no {0} here")]
    NoField(String),
    #[error("{0} is not a text")]
    NoText(String),
    #[error("{0} is not a list")]
    NoList(String),
}

impl Problem {
    fn at(self, line: usize) -> Error {
        Error { line, problem: self }
    }
}

/// Renders `template` with `data`.
pub(super) fn render(template: &str, data: &Value) -> Result<String, Error> {
    let mut tokens = tokens(template)?.into_iter();
    let (nodes, _) = parse(&mut tokens, None)?;
    let mut out = String::new();
    write(
        &nodes,
        Scope {
            root: data,
            dot: data,
        },
        &mut out,
    )?;
    Ok(out)
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Token {
    Text(String),
    /// The text between the braces, and its line.
    Action(String, usize),
}

/// Splits a template into text and actions, with white space trimmed as the actions request.
fn tokens(template: &str) -> Result<Vec<Token>, Error> {
    let mut tokens = Vec::new();
    let mut rest = template;
    let mut line = 1;
    let mut trim = false;
    while let Some(start) = rest.find("{{") {
        let (text, action) = rest.split_at(start);
        let inside = &action[2..];
        line += text.matches('\n').count();
        let end = length(inside).ok_or_else(|| Problem::Unclosed.at(line))?;
        let (left, right) = (inside.starts_with("- "), inside[..end].ends_with(" -"));
        let mut text = if trim { text.trim_start() } else { text };
        if left {
            text = text.trim_end();
        }
        tokens.push(Token::Text(text.to_owned()));
        let mut content = &inside[..end];
        content = if left { &content[1..] } else { content };
        content = if right {
            &content[..content.len() - 1]
        } else {
            content
        };
        if !content.trim().starts_with("/*") {
            tokens.push(Token::Action(content.trim().to_owned(), line));
        }
        line += inside[..end].matches('\n').count();
        rest = &inside[end + 2..];
        trim = right;
    }
    let text = if trim { rest.trim_start() } else { rest };
    tokens.push(Token::Text(text.to_owned()));
    Ok(tokens)
}

/// The length of an action up to its closing braces. A comment may contain braces, so that it ends at its own end.
fn length(inside: &str) -> Option<usize> {
    let action = inside.strip_prefix("- ").unwrap_or(inside).trim_start();
    let Some(comment) = action.strip_prefix("/*") else {
        return inside.find("}}");
    };
    let (_, rest) = comment.split_once("*/")?;
    let (between, _) = rest.split_once("}}")?;
    let is_closed = matches!(between.trim(), "" | "-");
    is_closed.then_some(inside.len() - rest.len() + between.len())
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Node {
    Text(String),
    Field(Path),
    Block {
        kind: Kind,
        path: Path,
        body: Vec<Node>,
        otherwise: Vec<Node>,
    },
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    If,
    With,
    Range,
}

/// `.A.B` from the current value, or `$.A.B` from the top.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Path {
    text: String,
    line: usize,
}

/// The end of a list of nodes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stop {
    Template,
    Else,
    End,
}

/// Parses nodes up to the end of the action `opened` at a line, or of the template.
fn parse(
    tokens: &mut impl Iterator<Item = Token>,
    opened: Option<(&str, usize)>,
) -> Result<(Vec<Node>, Stop), Error> {
    let mut nodes = Vec::new();
    while let Some(token) = tokens.next() {
        let (action, line) = match token {
            Token::Text(text) => {
                nodes.push(Node::Text(text));
                continue;
            }
            Token::Action(action, line) => (action, line),
        };
        let (word, argument) = action.split_once(' ').unwrap_or((&action, ""));
        let kind = match word {
            "if" => Kind::If,
            "with" => Kind::With,
            "range" => Kind::Range,
            "else" | "end" if !argument.is_empty() => return Err(Problem::Unsupported(action).at(line)),
            "else" | "end" if opened.is_none() => return Err(Problem::Stray(action).at(line)),
            "else" => return Ok((nodes, Stop::Else)),
            "end" => return Ok((nodes, Stop::End)),
            _ => {
                nodes.push(Node::Field(path(&action, line)?));
                continue;
            }
        };
        let path = path(argument.trim(), line)?;
        let (body, end) = parse(tokens, Some((&action, line)))?;
        let otherwise = if end == Stop::Else {
            match parse(tokens, Some((&action, line)))? {
                (_, Stop::Else) => return Err(Problem::Stray("else".to_owned()).at(line)),
                (nodes, _) => nodes,
            }
        } else {
            Vec::new()
        };
        nodes.push(Node::Block {
            kind,
            path,
            body,
            otherwise,
        });
    }
    match opened {
        Some((action, line)) => Err(Problem::NoEnd(action.to_owned()).at(line)),
        None => Ok((nodes, Stop::Template)),
    }
}

fn path(text: &str, line: usize) -> Result<Path, Error> {
    let fields = text.strip_prefix('$').unwrap_or(text);
    let is_name = |name: &str| {
        !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let is_path = match fields.strip_prefix('.') {
        Some(names) => names.is_empty() || names.split('.').all(is_name),
        None => text == "$",
    };
    if !is_path {
        return Err(Problem::Unsupported(text.to_owned()).at(line));
    }
    Ok(Path {
        text: text.to_owned(),
        line,
    })
}

#[derive(Clone, Copy, Debug)]
struct Scope<'a> {
    root: &'a Value,
    dot: &'a Value,
}

impl<'a> Scope<'a> {
    fn find(self, path: &Path) -> Result<&'a Value, Error> {
        let (start, fields) = match path.text.strip_prefix('$') {
            Some(fields) => (self.root, fields),
            None => (self.dot, path.text.as_str()),
        };
        let names = fields.split('.').filter(|name| !name.is_empty());
        let mut value = start;
        for name in names {
            value = value
                .get(name)
                .ok_or_else(|| Problem::NoField(path.text.clone()).at(path.line))?;
        }
        Ok(value)
    }
}

fn write(nodes: &[Node], scope: Scope<'_>, out: &mut String) -> Result<(), Error> {
    for node in nodes {
        match node {
            Node::Text(text) => out.push_str(text),
            Node::Field(path) => match scope.find(path)? {
                Value::String(text) => out.push_str(text),
                value @ (Value::Number(_) | Value::Bool(_)) => out.push_str(&value.to_string()),
                _ => return Err(Problem::NoText(path.text.clone()).at(path.line)),
            },
            Node::Block {
                kind,
                path,
                body,
                otherwise,
            } => {
                let value = scope.find(path)?;
                if is_empty(value) {
                    write(otherwise, scope, out)?;
                    continue;
                }
                let root = scope.root;
                match kind {
                    Kind::If => write(body, scope, out)?,
                    Kind::With => write(body, Scope { root, dot: value }, out)?,
                    Kind::Range => {
                        let list = value
                            .as_array()
                            .ok_or_else(|| Problem::NoList(path.text.clone()).at(path.line))?;
                        for dot in list {
                            write(body, Scope { root, dot }, out)?;
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// Whether `if` takes a value for false.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(members) => members.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rendered(template: &str) -> Result<String, String> {
        let data = json!({
            "Version": "1.2.3", "Empty": "", "Count": 3, "Yes": true,
            "CNA": { "Images": [{ "Name": "a" }, { "Name": "b" }], "None": [] },
        });
        render(template, &data).map_err(|error| error.to_string())
    }

    #[test]
    fn render_equals_rendering_of_go() {
        for (template, expected) in [
            ("v{{.Version}}, {{ .Count }} {{.Yes}}", "v1.2.3, 3 true"),
            (
                "{{if .Version}}a{{else}}b{{end}}{{if .Empty}}c{{else}}d{{end}}",
                "ad",
            ),
            ("x\n{{if .Empty}}\n  y\n{{end}}\nz", "x\n\nz"),
            (
                "images:\n{{- range .CNA.Images }}\n  - {{ .Name }} {{ $.Version }}\n{{- end}}\nend",
                "images:\n  - a 1.2.3\n  - b 1.2.3\nend",
            ),
            ("{{range .CNA.None}}a{{else}}none{{end}}", "none"),
            ("{{with .CNA}}{{range .Images}}{{.Name}}{{end}}{{end}}", "ab"),
            ("a {{- /* a note */ -}} b", "ab"),
            ("a{{/* {{ .Version }} */}}b", "ab"),
            ("a\n{{- /* {{if .Yes}}\n{{end}} */ -}}\nb {{.Count}}", "ab 3"),
            ("a {{-  .Version -}}\n\n b", "a1.2.3b"),
            ("{{with .Version}}{{.}}{{end}}", "1.2.3"),
            ("{ {.Version} }", "{ {.Version} }"),
        ] {
            assert_eq!(rendered(template), Ok(expected.to_owned()), "{template}");
        }
    }

    #[test]
    fn unsupported_action_is_refused_with_its_line() {
        for (template, problem) in [
            ("a\n{{.Version", "line 2: {{ without }}"),
            ("a\n{{/* {{.Version}} ", "line 2: {{ without }}"),
            ("{{/* a */ .Version}}", "line 1: {{ without }}"),
            (
                "{{.Version}}\n\n{{.Nothing}}",
                "line 3: there is no .Nothing here",
            ),
            (
                "{{.CNA.Nothing.More}}",
                "line 1: there is no .CNA.Nothing.More here",
            ),
            ("{{.CNA}}", "line 1: .CNA is not a text"),
            ("{{range .Version}}{{end}}", "line 1: .Version is not a list"),
            ("\n{{if .Version}}", "line 2: {{if .Version}} has no {{end}}"),
            ("{{end}}", "line 1: {{end}} without if, with or range"),
            (
                "{{if .Version}}{{else}}{{else}}{{end}}",
                "line 1: {{else}} without if, with or range",
            ),
            (
                "{{.Version | quote}}",
                "line 1: {{.Version | quote}} is not supported: fields, if, with, range, else and end are",
            ),
            (
                "{{else if .Version}}",
                "line 1: {{else if .Version}} is not supported: fields, if, with, range, else and end are",
            ),
            (
                "{{printf .Version}}",
                "line 1: {{printf .Version}} is not supported: fields, if, with, range, else and end are",
            ),
        ] {
            assert_eq!(rendered(template), Err(problem.to_owned()), "{template}");
        }
    }
}
