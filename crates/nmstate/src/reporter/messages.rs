//! Texts that users see.

/// Reason of the condition of an incomplete report.
pub(crate) const TOO_LARGE: &str = "ReportTooLarge";

/// Message of the condition of an incomplete report.
pub(crate) fn left_out(parts: &[&str]) -> String {
    format!(
        "the report is too large to be stored; left out: {}",
        parts.join(", ")
    )
}
