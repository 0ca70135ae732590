//! Excerpts of long texts, for conditions and the log.

/// The start of a text, at most `most` bytes.
pub(crate) fn start(text: &str, most: usize) -> String {
    let text = text.trim();
    if text.len() <= most {
        return text.to_owned();
    }
    let kept = &text[..text.floor_char_boundary(most)];
    format!("{kept}… ({} more bytes)", text.len() - kept.len())
}

/// The last whole lines of a text, at most `most` bytes.
pub(crate) fn end(text: &str, most: usize) -> String {
    let text = text.trim();
    if text.len() <= most {
        return text.to_owned();
    }
    let from = text.ceil_char_boundary(text.len() - most);
    let tail = &text[from..];
    // A partial line is dropped unless it is the only one.
    let tail = tail.split_once('\n').map_or(tail, |(_, lines)| lines);
    format!("…\n{tail}")
}
