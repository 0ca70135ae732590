//! Texts that users see.

/// Why a report is not complete.
pub(crate) const TOO_LARGE: &str = "ReportTooLarge";

/// What is missing in a report that is not complete.
pub(crate) fn left_out(parts: &[&str]) -> String {
    format!(
        "the report is too large to be stored; left out: {}",
        parts.join(", ")
    )
}
