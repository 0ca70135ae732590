//! The programs of the node state as a binary, for the tests of this crate; the image has them as names and commands of
//! `weft`.
//!
//! ```text
//! argv[0], RUN_* ──> which program ──> clap ──> its run(args)
//! ```

fn main() -> std::process::ExitCode {
    weft_nmstate::main(std::env::args_os().collect())
}
