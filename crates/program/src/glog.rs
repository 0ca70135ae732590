//! Flags of Go's logging library that existing manifests pass: understood, and without effect.

use clap::Args;

/// `-v 3 -logtostderr` and their kin.
#[derive(Debug, Clone, Default, Args)]
pub struct Flags {
    #[arg(short = 'v', hide = true, value_name = "LEVEL")]
    v: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    logtostderr: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    alsologtostderr: Option<String>,
    #[arg(long, hide = true)]
    stderrthreshold: Option<String>,
    #[arg(long, hide = true)]
    vmodule: Option<String>,
    #[arg(long = "log_dir", hide = true)]
    log_dir: Option<String>,
    #[arg(long = "log_backtrace_at", hide = true)]
    log_backtrace_at: Option<String>,
}
