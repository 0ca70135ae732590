//! `cargo xtask image`: the container image, FROM scratch, without a container engine.

mod linked;
mod notices;
mod papers;
mod place;
mod sbom;
mod system;
mod twice;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;
use cluster::image::Image;
use cluster::{Progress, Steps, run};

use self::papers::Paper;
use self::place::Place;
use crate::build::{self, Inventory};
use crate::paths;

/// Name of the image. Its tag is the digest of its content, so that a rebuild is a new image and pods roll out again.
const NAME: &str = "localhost/weft";
/// Directory of images in the target directory.
const FOLDER: &str = "image";

/// Arguments of the command.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Build the image again in other directories, and fail if the bytes of a program or of the image differ
    #[arg(long)]
    twice: bool,
}

/// A program of the image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    /// The package of the program.
    package: &'static str,
    /// Cargo's name.
    pub(crate) name: &'static str,
    /// Path in the image.
    path: &'static str,
    /// The C library.
    library: Library,
    /// Compiler options beyond the release profile and `.cargo/config.toml`.
    flags: &'static [&'static str],
    /// Its functions are [ordered](order).
    is_ordered: bool,
}

/// A C library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Library {
    /// Its allocator returns memory to the kernel.
    Glibc,
    /// It starts a process without detecting the processor's features. Each `cpuid` of that detection takes 20
    /// microseconds if a hypervisor traps it.
    Musl,
}

impl Library {
    /// Returns Cargo's target.
    fn triple(self) -> String {
        match self {
            Self::Glibc => paths::triple(),
            Self::Musl => paths::triple().replace("-gnu", "-musl"),
        }
    }
}

/// All plugins. This program starts for every pod event and lives for milliseconds: fewer instructions matter, not only
/// fewer bytes. It is smaller without unwinding.
pub(crate) const CNI: Program = Program {
    package: "plugins",
    name: build::CNI,
    path: "/weft-cni",
    library: Library::Musl,
    flags: &["-Cpanic=abort", "-Copt-level=s"],
    is_ordered: false,
};
/// All daemons, and the command line.
pub(crate) const WEFT: Program = Program {
    package: "weft",
    name: build::WEFT,
    path: "/weft",
    library: Library::Glibc,
    flags: &[],
    is_ordered: true,
};
/// All programs.
const PROGRAMS: [Program; 2] = [WEFT, CNI];

/// Names of programs in upstream's images, and the program of Weft for each.
const LINKS: &[(&str, &str)] = &[
    ("/cluster-network-addons-operator", "/weft"),
    ("/manifest-templator", "/weft"),
    ("/usr/bin/csv-generator", "/weft"),
    ("/manager", "/weft"),
    ("/weft-nmstate", "/weft"),
    ("/usr/local/bin/manager", "/weft"),
    ("/usr/bin/nmstatectl", "/weft"),
    // For the probes of upstream's handlers, and only for these.
    ("/usr/bin/bash", "/weft"),
    ("/usr/bin/cat", "/weft"),
    ("/dynamic-networks-controller", "/weft"),
    // The OVS marker.
    ("/marker", "/weft"),
    // For the probes of upstream's dynamic networks controller, and only for these.
    ("/usr/bin/curl", "/weft"),
    ("/usr/src/multus-cni/bin/multus", "/weft"),
    ("/usr/src/multus-cni/bin/multus-daemon", "/weft"),
    ("/usr/src/multus-cni/bin/install_multus", "/weft"),
    ("/usr/src/multus-cni/bin/thin_entrypoint", "/weft"),
    ("/usr/src/multus-cni/bin/kubeconfig_generator", "/weft"),
    ("/usr/src/multus-cni/bin/cert-approver", "/weft"),
    ("/usr/src/multus-cni/bin/multus-shim", "/weft-cni"),
    ("/usr/src/multus-cni/bin/passthru", "/weft-cni"),
    // The same in the root directory, as in images of thin mode.
    ("/install_multus", "/weft"),
    ("/thin_entrypoint", "/weft"),
    ("/kubeconfig_generator", "/weft"),
    ("/cert-approver", "/weft"),
    (
        "/usr/src/github.com/containernetworking/plugins/bin/bridge",
        "/weft-cni",
    ),
    (
        "/usr/src/github.com/containernetworking/plugins/bin/tuning",
        "/weft-cni",
    ),
];

/// A built image.
#[derive(Debug)]
pub(crate) struct Built {
    /// `localhost/weft:0123456789ab`
    pub(crate) reference: String,
    /// The docker archive.
    pub(crate) archive: PathBuf,
    /// Size of the uncompressed archive, bytes.
    pub(crate) bytes: u64,
    /// Sizes of the programs and documents, bytes.
    pub(crate) parts: Vec<(&'static str, u64)>,
    /// The program of all daemons, and the program of all plugins.
    pub(crate) weft: PathBuf,
    pub(crate) cni: PathBuf,
}

impl Built {
    /// Returns the sizes as text, one line each.
    pub(crate) fn sizes(&self) -> String {
        let mut text = format!(
            "{:10} {:>10}  {}\n",
            "image",
            mebibytes(self.bytes),
            self.archive.display()
        );
        for (name, bytes) in &self.parts {
            text.push_str(&format!("{name:10} {:>10}\n", mebibytes(*bytes)));
        }
        text
    }
}

pub(crate) fn mebibytes(bytes: u64) -> String {
    let hundredths = bytes * 100 / (1024 * 1024);
    format!("{}.{:02} MiB", hundredths / 100, hundredths % 100)
}

/// A compiled release program.
pub(crate) fn built(program: Program) -> anyhow::Result<PathBuf> {
    Ok(Place::usual()?.built(program))
}

/// The linker's map of [`WEFT`].
pub(crate) fn map() -> anyhow::Result<PathBuf> {
    Ok(Place::usual()?.map(WEFT))
}

/// Returns the image of programs, given as (path, content), with their documents.
fn layout(programs: Vec<(&str, Vec<u8>)>, papers: &[Paper]) -> Image {
    let mut image = Image::new()
        .dir("/tmp", 0o1777)
        .dir("/run", 0o755)
        .link("/var/run", "/run")
        .file(
            "/etc/passwd",
            0o644,
            "root:x:0:0:root:/:/weft\nweft:x:1001:1001:weft:/:/weft\n",
        )
        .file("/etc/group", 0o644, "root:x:0:\nweft:x:1001:\n")
        .entrypoint(&["/weft"]);
    for (path, content) in programs {
        image = image.file(path, 0o755, content);
    }
    for Paper { path, content, .. } in papers {
        image = image.file(path, 0o644, content.as_slice());
    }
    LINKS
        .iter()
        .fold(image, |image, (path, target)| image.link(path, target))
}

/// Builds static, optimised programs.
pub(crate) fn compile(programs: &[Program], steps: &mut dyn Progress) -> anyhow::Result<()> {
    Place::usual()?.compile(programs, steps)
}

/// Builds the release programs and assembles the image.
pub(crate) fn build(steps: &mut dyn Progress) -> anyhow::Result<Built> {
    build_in(&Place::usual()?, steps)
}

fn build_in(place: &Place, steps: &mut dyn Progress) -> anyhow::Result<Built> {
    place.compile(&PROGRAMS, steps)?;
    if let Some(remark) = place.is_stale(WEFT) {
        steps.step(&remark);
    }
    let papers = papers::write(&place.target.join(FOLDER), steps)?;
    let programs = PROGRAMS.map(|program| (program, place.built(program)));
    assemble(&programs, &papers, place.archive(), steps)
}

/// Assembles an image of the development build, for tests and experiments, because the release build takes minutes. It
/// is not distributed, and therefore has no documents.
pub(crate) fn development(inventory: &Inventory, steps: &mut dyn Progress) -> anyhow::Result<Built> {
    let dir = paths::target().join(FOLDER).join("development");
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    steps.step("waiting for the programs of the image");
    let mut programs = Vec::new();
    for program in PROGRAMS {
        let unstripped = inventory.binary(program.name)?;
        let file = dir.join(program.name);
        // Without strip, the image is twice as large.
        let strip = run::output(Command::new("strip").arg("-o").arg(&file).arg(&unstripped));
        programs.push((program, if strip.is_ok() { file } else { unstripped }));
    }
    let archive = paths::target().join(FOLDER).join("development.tar");
    assemble(&programs, &[], archive, steps)
}

fn assemble(
    programs: &[(Program, PathBuf)],
    papers: &[Paper],
    archive: PathBuf,
    steps: &mut dyn Progress,
) -> anyhow::Result<Built> {
    steps.step("assembling the image");
    let file = |wanted: Program| {
        let found = programs.iter().find(|(program, _)| program.name == wanted.name);
        found.map(|(_, file)| file.clone()).unwrap_or_default()
    };
    let mut contents = Vec::new();
    let mut sizes = Vec::new();
    for (program, file) in programs {
        let content = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        sizes.push((program.name, content.len() as u64));
        contents.push((program.path, content));
    }
    sizes.extend(
        papers
            .iter()
            .map(|paper| (paper.name, paper.content.len() as u64)),
    );
    let reference = layout(contents, papers).write(&archive, NAME, None)?;
    let bytes = fs::metadata(&archive)
        .with_context(|| format!("cannot read {}", archive.display()))?
        .len();
    Ok(Built {
        reference,
        archive,
        bytes,
        parts: sizes,
        weft: file(WEFT),
        cni: file(CNI),
    })
}

/// Builds and prints: the name alone on standard output, and the sizes on standard error.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Args { twice } = args;
    let mut steps = Steps::new();
    let built = build(&mut steps)?;
    let compared = twice.then(|| twice::compare(&mut steps)).transpose()?;
    println!("{}", built.reference);
    eprint!("{}{}", built.sizes(), compared.unwrap_or_default());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_has_the_programs_and_the_names_of_upstreams_images() {
        let notices = Paper {
            name: "notices",
            path: "/usr/share/doc/weft/NOTICES.txt.gz".to_owned(),
            content: vec![3],
        };
        let image = layout(vec![("/weft", vec![1]), ("/weft-cni", vec![2])], &[notices]);
        let paths: Vec<&str> = image.paths().collect();
        for path in [
            "usr/share/doc/weft/NOTICES.txt.gz",
            "weft",
            "weft-cni",
            "tmp",
            "run",
            "var/run",
            "etc/passwd",
            // multus.md §12
            "usr/src/multus-cni/bin/multus",
            "usr/src/multus-cni/bin/multus-daemon",
            "usr/src/multus-cni/bin/multus-shim",
            "usr/src/multus-cni/bin/install_multus",
            "usr/src/multus-cni/bin/thin_entrypoint",
            "usr/src/multus-cni/bin/kubeconfig_generator",
            "usr/src/multus-cni/bin/cert-approver",
            "usr/src/multus-cni/bin/passthru",
            "install_multus",
            "thin_entrypoint",
            "kubeconfig_generator",
            "cert-approver",
            "dynamic-networks-controller",
            "marker",
            "usr/bin/curl",
            "manager",
            "weft-nmstate",
            "usr/local/bin/manager",
        ] {
            assert!(paths.contains(&path), "{path} is missing in {paths:?}");
        }
        assert!(
            !paths.iter().any(|path| path.starts_with("bin/")),
            "there is no shell: {paths:?}"
        );
    }

    #[test]
    fn size_is_rounded_down_to_hundredths() {
        assert_eq!(mebibytes(1024 * 1024 * 3 / 2), "1.50 MiB");
        assert_eq!(mebibytes(15 * 1024 * 1024 - 1), "14.99 MiB");
    }
}
