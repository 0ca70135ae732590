//! What components with admission webhooks share: certificates that nobody else has to issue.

pub mod certificates;
