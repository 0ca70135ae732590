//! Text of expressions in the Common Expression Language.

/// Start and end of an expression in a text; no message contains it.
const MARK: char = '\0';

/// A text as a literal.
pub(super) fn literal(text: &str) -> String {
    let mut quoted = String::from("'");
    for c in text.chars() {
        if c == '\'' || c == '\\' {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted + "'"
}

/// A regular expression as a literal; it must not contain quotes.
pub(super) fn pattern(expression: &str) -> String {
    format!("r'{expression}'")
}

/// Placeholder for an expression in a message, see [`concat`].
pub(super) fn hole(expression: &str) -> String {
    format!("{MARK}{expression}{MARK}")
}

/// The expression that computes a message with [placeholders](hole).
pub(super) fn concat(message: &str) -> String {
    let parts = message.split(MARK).enumerate();
    let parts: Vec<_> = parts
        .filter(|(_, part)| !part.is_empty())
        .map(|(index, part)| {
            if index % 2 == 0 {
                literal(part)
            } else {
                part.to_owned()
            }
        })
        .collect();
    parts.join(" + ")
}

pub(super) fn list(items: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let items: Vec<_> = items.into_iter().map(|item| item.as_ref().to_owned()).collect();
    format!("[{}]", items.join(", "))
}

/// The value of the first true condition, else an empty text.
pub(super) fn first_of(cases: &[(&str, String)]) -> String {
    first_of_or(cases, "''")
}

/// The value of the first true condition, else `otherwise`.
pub(super) fn first_of_or(cases: &[(&str, String)], otherwise: &str) -> String {
    let lines: Vec<_> = cases
        .iter()
        .map(|(condition, value)| format!("{condition} ? {value} :\n"))
        .collect();
    format!("{}{otherwise}", lines.concat())
}
