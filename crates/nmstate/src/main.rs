//! `weft-nmstate`: the programs of the node state in one binary.
//!
//! ```text
//! argv[0], RUN_* ──> which program ──> clap ──> its run(args)
//! ```

fn main() -> std::process::ExitCode {
    weft_nmstate::main(std::env::args_os().collect())
}
