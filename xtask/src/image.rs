//! `cargo xtask image`: the images as OCI layouts, made without docker and without a registry.
//!
//! ```text
//! target/image/harvester-cloud-provider/          the program alone, under each of its names
//! target/image/harvester-csi-driver/              the program, and the file-system tools of Debian packages
//!     oci-layout, index.json, blobs/sha256/…      one image of all architectures that were made
//! target/image/<name>-<arch>.cdx.json             what is in it: versions and SHA-256 (CycloneDX)
//! ```
//! The same program and packages make the same bytes: no time, no name of a host and no order of a folder is in them.

mod debian;
mod layer;
mod layout;
mod sbom;
mod start;
mod used;

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use self::layout::{Layout, Platform};
use crate::{
    package_driver::{self, PROFILE, c_compiler, is_static},
    step, workspace,
};

/// The file that cargo builds.
const PROGRAM: &str = "harvester-cloud-provider";
/// For rustc: addresses that the program corrects when it starts take a bit each, not 24 bytes, which our C library in it
/// reads, and functions of the same code are one.
const LINKED: [&str; 4] = ["-C", "link-arg=-zpack-relative-relocs", "-C", "link-arg=--icf=all"];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// These architectures; without it all that can be built here.
    #[arg(long, value_enum)]
    arch: Vec<Arch>,
    /// Take this static program of the one --arch, and build none.
    #[arg(long, value_name = "FILE", requires = "arch")]
    program: Option<PathBuf>,
    /// Build the program twice, in two folders, and compare.
    #[arg(long, conflicts_with = "program")]
    verify: bool,
    /// Start what was made: by chroot as root, and by bubblewrap where it works.
    #[arg(long)]
    start: bool,
    /// Cargo's profile.
    #[arg(long, default_value = PROFILE)]
    profile: String,
}

/// An architecture, by the name that OCI and Debian have for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Arch {
    Amd64,
    Arm64,
}

impl Arch {
    const ALL: [Self; 2] = [Self::Amd64, Self::Arm64];

    fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Rust's target.
    fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-musl",
            Self::Arm64 => "aarch64-unknown-linux-musl",
        }
    }

    /// Whether an ELF file is for it.
    fn is_of(self, elf: &[u8]) -> bool {
        let machine: u16 = match self {
            Self::Amd64 => 62,
            Self::Arm64 => 183,
        };
        elf.get(0x12..0x14) == Some(&machine.to_le_bytes())
    }

    fn is_own(self) -> bool {
        package_driver::is_own(self.target())
    }
}

/// One image.
struct Image {
    /// As the charts call it.
    name: &'static str,
    /// Where the program is in it.
    program: &'static str,
    /// Its other names, beside it.
    links: &'static [&'static str],
    path: &'static str,
    has_tools: bool,
}

const IMAGES: [Image; 2] = [
    Image {
        name: "harvester-cloud-provider",
        program: "bin/harvester-cloud-provider",
        links: &[
            "docker-machine-driver-harvester",
            "harvester-load-balancer",
            "harvester-load-balancer-webhook",
        ],
        path: "/bin",
        has_tools: false,
    },
    Image {
        name: "harvester-csi-driver",
        program: "usr/bin/harvester-csi-driver",
        links: &[],
        path: "/usr/sbin:/usr/bin:/sbin:/bin",
        has_tools: true,
    },
];

/// The folder of a layout.
fn layout_of(image: &str) -> PathBuf {
    folder().join(image)
}

/// The size of the program that is in the images of this machine's architecture, in MiB.
///
/// # Errors
/// They were not made.
pub(crate) fn program_mib() -> Result<f64> {
    let arch = Arch::ALL.into_iter().find(|arch| arch.is_own()).context("no image is for this machine")?;
    let file = stage_of(&IMAGES[0], arch).join(IMAGES[0].program);
    let file = fs::metadata(&file)
        .with_context(|| format!("there is no {}: cargo xtask image makes it", file.display()))?;
    Ok(file.len() as f64 / f64::from(1 << 20))
}

/// What an image that was made takes on a node, in MiB.
///
/// # Errors
/// It was not made.
pub(crate) fn unpacked_mib(image: &str) -> Result<f64> {
    layout::unpacked_mib(&layout_of(image))
}

fn folder() -> PathBuf {
    workspace::target().join("image")
}

/// Makes the images.
///
/// # Errors
/// Where a program is missing, or refuses what it is given.
pub(crate) fn run(options: &Options) -> Result<bool> {
    ensure!(
        options.program.is_none() || options.arch.len() == 1,
        "--program is of one architecture: give one --arch"
    );
    let mut made: Vec<Vec<Platform>> = IMAGES.iter().map(|_| vec![]).collect();
    for arch in Arch::ALL {
        if !options.arch.is_empty() && !options.arch.contains(&arch) {
            continue;
        }
        let program = match &options.program {
            Some(program) => program.clone(),
            None => match build(arch, options) {
                Ok(Some(program)) => program,
                Ok(None) => return Ok(false),
                Err(error) if options.arch.is_empty() && !arch.is_own() => {
                    println!("      {} is left out: {error:#}", arch.name());
                    continue;
                }
                Err(error) => return Err(error),
            },
        };
        let content = fs::read(&program).with_context(|| format!("read {}", program.display()))?;
        ensure!(is_static(&content), "{} needs a loader, and the image has none", program.display());
        ensure!(arch.is_of(&content), "{} is no program for {}", program.display(), arch.name());
        for (image, platforms) in IMAGES.iter().zip(&mut made) {
            let root = stage(image, arch, &program)?;
            let layout = Layout::open(&layout_of(image.name), platforms.is_empty())?;
            platforms.push(layout.add(&layer::of(&root)?, &config(image), arch.name())?);
            if options.start && !start::all(image, arch, &root)? {
                return Ok(false);
            }
        }
    }
    for (image, platforms) in IMAGES.iter().zip(&made) {
        ensure!(!platforms.is_empty(), "no architecture could be built");
        let layout = Layout::open(&layout_of(image.name), false)?;
        layout.close(platforms, &tag())?;
        let mib = unpacked_mib(image.name)?;
        println!("ok     {} ({mib:.1} MiB on a node)", layout_of(image.name).display());
    }
    println!("       skopeo copy --all oci:{}:{} docker://…", layout_of(IMAGES[0].name).display(), tag());
    Ok(true)
}

/// As the charts ask for it.
fn tag() -> String {
    format!("v{}", env!("CARGO_PKG_VERSION"))
}

fn config(image: &Image) -> layout::Config {
    layout::Config {
        entrypoint: format!("/{}", image.program),
        path: image.path.to_owned(),
        title: image.name.to_owned(),
    }
}

/// Builds the program; none where it does not build, or differs from itself.
fn build(arch: Arch, options: &Options) -> Result<Option<PathBuf>> {
    let target = arch.target();
    let there = package_driver::is_installed(target)? || package_driver::install(target)?;
    ensure!(there, "`rustup target add {target}` would bring it");
    let Some(first) = build_in("build", target, options)? else { return Ok(None) };
    if options.verify {
        let Some(second) = build_in("verify", target, options)? else { return Ok(None) };
        let same = fs::read(&first)? == fs::read(&second)?;
        println!(
            "{}built twice for {target}: {}",
            if same { "ok     " } else { "FAILED " },
            if same { "the same bytes" } else { "different bytes" }
        );
        if !same {
            return Ok(None);
        }
    }
    Ok(Some(first))
}

/// Builds in a folder of its own, whose name and whose owner's are in no byte of the program.
fn build_in(folder_name: &str, target: &str, options: &Options) -> Result<Option<PathBuf>> {
    let out = folder().join(folder_name);
    let mut cargo = workspace::cargo([
        "rustc",
        "--no-default-features",
        "--locked",
        "--bin",
        PROGRAM,
        "--target",
        target,
        "--profile",
        &options.profile,
        "--",
    ]);
    cargo.args(LINKED);
    cargo.env("CARGO_TARGET_DIR", &out).env("CARGO_ENCODED_RUSTFLAGS", remapped(&out));
    c_compiler::find(target)?.with_own_linker().announce(target, &mut cargo);
    if !step::run(&format!("build {PROGRAM} for {target}"), &mut cargo)?.succeeded {
        return Ok(None);
    }
    let profile = if options.profile == "dev" { "debug" } else { &options.profile };
    Ok(Some(out.join(target).join(profile).join(PROGRAM)))
}

/// Flags for rustc, by which paths of this machine are written as those of nobody.
fn remapped(out: &Path) -> String {
    let home = std::env::var("HOME").unwrap_or_default();
    let cargo = std::env::var("CARGO_HOME").unwrap_or_else(|_| format!("{home}/.cargo"));
    let pairs = [
        (workspace::root().display().to_string(), "/src"),
        (cargo, "/cargo"),
        (out.display().to_string(), "/target"),
    ];
    let flags = pairs.iter().map(|(from, to)| format!("--remap-path-prefix={from}={to}"));
    flags.collect::<Vec<_>>().join("\u{1f}")
}

/// The folder with the content of an image.
fn stage_of(image: &Image, arch: Arch) -> PathBuf {
    folder().join("stage").join(format!("{}-{}", image.name, arch.name()))
}

/// Puts the content of an image into a folder, and its list beside the layout.
fn stage(image: &Image, arch: Arch, program: &Path) -> Result<PathBuf> {
    let root = stage_of(image, arch);
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))?;
    }
    fs::create_dir_all(&root).with_context(|| format!("make {}", root.display()))?;
    let packages = if image.has_tools { debian::unpack(arch.name(), &folder(), &root)? } else { vec![] };
    let file = root.join(image.program);
    let beside = file.parent().context("a program is in a folder")?;
    fs::create_dir_all(beside)?;
    fs::copy(program, &file).with_context(|| format!("copy {}", program.display()))?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
    for link in image.links {
        symlink(PROGRAM, beside.join(link)).with_context(|| format!("link {link}"))?;
    }
    let crates = sbom::crates(arch.target())?;
    let list = sbom::of(image.name, &tag(), &layout::digest_of(&file)?, &packages, &crates);
    let path = folder().join(format!("{}-{}.cdx.json", image.name, arch.name()));
    fs::write(&path, list).with_context(|| format!("write {}", path.display()))?;
    Ok(root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_images_have_the_names_and_the_programs_that_the_charts_ask_for() {
        let charts = workspace::root().join("deploy/charts");
        let read = |path: &str| fs::read_to_string(charts.join(path)).unwrap();
        for (image, values, templates) in [
            (
                &IMAGES[0],
                &["harvester-cloud-provider/values.yaml", "harvester-load-balancer/values.yaml"][..],
                &[
                    "harvester-cloud-provider/templates/deployment.yaml",
                    "harvester-load-balancer/templates/deployment.yaml",
                ][..],
            ),
            (
                &IMAGES[1],
                &["harvester-csi-driver/values.yaml"],
                &[
                    "harvester-csi-driver/templates/controllers.yaml",
                    "harvester-csi-driver/templates/daemonset.yaml",
                ],
            ),
        ] {
            for file in values {
                let names = format!("repository: {}\n", image.name);
                assert!(read(file).contains(&names), "{file}: {names}");
            }
            let mut programs = image.links.to_vec();
            programs.push(image.program.rsplit('/').next().unwrap());
            for file in templates {
                let text = read(file);
                let commands = text.lines().filter_map(|line| line.trim().strip_prefix("command: ["));
                let commands: Vec<&str> = commands.map(|line| line.trim_end_matches(']')).collect();
                assert!(
                    !commands.is_empty() && commands.iter().all(|name| programs.contains(name)),
                    "{file}: {commands:?}"
                );
            }
            let folder = format!("/{}", image.program.rsplit_once('/').unwrap().0);
            assert!(
                image.path.split(':').any(|part| part == folder),
                "{}: {folder} is not in PATH",
                image.name
            );
        }
    }

    #[test]
    fn a_program_for_another_architecture_is_refused() {
        let mut elf = vec![0; 0x40];
        elf[0x12] = 183;
        assert!(Arch::Arm64.is_of(&elf) && !Arch::Amd64.is_of(&elf));
        assert!(!Arch::Arm64.is_of(&elf[..0x13]), "cut off");
    }

    #[test]
    fn no_path_of_this_machine_is_left_in_the_program() {
        let flags = remapped(Path::new("/somewhere/target/image/build"));
        let flags: Vec<&str> = flags.split('\u{1f}').collect();
        assert_eq!(flags.len(), 3);
        assert_eq!(flags[0], format!("--remap-path-prefix={}=/src", workspace::root().display()));
        assert_eq!(flags[2], "--remap-path-prefix=/somewhere/target/image/build=/target");
    }
}
