//! The Debian packages of scripts/package: together they contain an installation, and they run when
//! they are unpacked.

use std::fs;

use hostbuf_tests::{can_simulate, flavours, simulated, skip};

use crate::installation::{Installation, has};

/// Returns the path below /usr at which a package has `file` of an installation, whose libraries
/// are in lib/`libraries`, or `None` if no package has it.
fn packaged(file: &str, libraries: &str) -> Option<String> {
    if let Some((_, agent)) = file.split_once("hostbuf-agent-") {
        // Debian's MPIs, and the binary interfaces that several MPIs have.
        return (agent.ends_with('4') || agent.ends_with("-abi")).then(|| file.to_owned());
    }
    // dpkg has a list of its own, and the programs are in everybody's PATH.
    let left_out = ["share/hostbuf/manifest", "share/doc/hostbuf/LICENSE-", "share/modulefiles/"];
    if left_out.iter().any(|path| file.starts_with(path)) {
        return None;
    }
    let moved = [
        ("lib/hostbuf/", "lib/hostbuf/".to_owned()),
        ("lib/", format!("lib/{libraries}/")),
        ("share/zsh/site-functions/", "share/zsh/vendor-completions/".to_owned()),
        ("share/doc/hostbuf/CHANGELOG.md", "share/doc/hostbuf/changelog.gz".to_owned()),
    ];
    let place = moved.iter().find_map(|(from, to)| Some(format!("{to}{}", file.strip_prefix(from)?)));
    Some(match place {
        None if file.starts_with("share/man/") => format!("{file}.gz"),
        place => place.unwrap_or(file.to_owned()),
    })
}

#[test]
fn the_debian_packages_are_complete_and_their_programs_run() {
    let Some(scratch) = Installation::installed("package") else { return };
    if !has("dpkg-shlibdeps", "the Debian packages") {
        return;
    }
    let debians = flavours().into_iter().filter(|flavour| flavour.ends_with('4')).collect::<Vec<_>>();
    if debians.is_empty() {
        return skip("the Debian packages: neither of Debian's MPIs has an agent here (scripts/build)");
    }
    scratch.run("$ROOT/scripts/package --no-build --output .").ok();
    let names = ["hostbuf", "hostbuf-agents", "libhostbuf-dev", "libhostbuf0"];
    assert_eq!(scratch.run("ls *.deb | sed 's/_.*//' | LC_ALL=C sort").ok().lines(""), names);

    // Each installed file is in one package.
    let list = |name: &str| {
        let list = format!("dpkg-deb --fsys-tarfile {name}_*.deb | tar -t | grep -v '/$'");
        scratch.run(&list).ok().lines("./usr/")
    };
    let lists = names.map(list);
    let mut all = lists.concat();
    all.sort();
    assert!(all.windows(2).all(|pair| pair[0] != pair[1]), "a file is in two packages: {all:?}");
    let libraries = scratch.run("dpkg-architecture -q DEB_HOST_MULTIARCH").ok().stdout;
    let manifest = scratch.run("cat prefix/share/hostbuf/manifest").ok().stdout;
    for file in manifest.lines().filter(|file| !file.ends_with('/')) {
        let Some(place) = packaged(file, libraries.trim()) else { continue };
        assert!(all.contains(&place), "{place} is in no package:\n{all:#?}");
    }
    let library = format!("lib/{}/libhostbuf.so", libraries.trim());
    for (package, file) in [
        (0, "bin/hostbuf"),
        (0, "lib/hostbuf/libhostbuf_preload.so"),
        (0, "share/man/man1/hostbuf-run.1.gz"),
        (0, "share/doc/hostbuf/copyright"),
        (0, "share/doc/hostbuf/changelog.Debian.gz"),
        (1, &format!("libexec/hostbuf/hostbuf-agent-{}", debians[0])),
        (1, "libexec/hostbuf/hostbuf-agent-mpi-abi"),
        (1, "share/doc/hostbuf-agents"),
        (2, &library),
        (2, "include/hostbuf.h"),
        (2, "share/hostbuf/fortran/hostbuf.f90"),
        (2, "share/man/man3/hostbuf.3.gz"),
        (2, "share/doc/libhostbuf-dev"),
        (3, &format!("{library}.0")),
        (3, "share/doc/libhostbuf0/copyright"),
        (3, "share/doc/libhostbuf0/changelog.Debian.gz"),
        (3, "share/doc/libhostbuf0/THIRD-PARTY-LICENSES.txt"),
    ] {
        assert!(lists[package].iter().any(|f| f == file), "{} has no {file}", names[package]);
    }

    let version = scratch.run("dpkg-deb --field hostbuf_*.deb Version").ok().stdout;
    let same = |name: &str| format!("{name} (= {})", version.trim());
    let field = |package: &str, field: &str| {
        scratch.run(&format!("dpkg-deb --field {package}_*.deb {field}")).ok().stdout.trim().to_owned()
    };
    for package in ["hostbuf", "hostbuf-agents", "libhostbuf0"] {
        let depends = field(package, "Depends");
        assert!(depends.contains("libc6 (>= ") && !depends.contains("mpi"), "{package}: {depends}");
    }
    assert_eq!(field("hostbuf", "Recommends"), same("hostbuf-agents"));
    assert!(field("hostbuf-agents", "Depends").starts_with(&same("hostbuf")));
    assert_eq!(field("hostbuf-agents", "Recommends"), "openmpi-bin | mpich");
    let suggested = field("hostbuf-agents", "Suggests");
    assert!(suggested.contains("mpi") && !suggested.contains("libc6"), "{suggested}");
    assert_eq!(field("libhostbuf-dev", "Depends"), same("libhostbuf0"));
    // Before 0.1.0-2 the package hostbuf had all files.
    for package in &names[1..] {
        assert_eq!(field(package, "Replaces"), "hostbuf (<< 0.1.0-2~)", "{package}");
        assert!(field(package, "Breaks").starts_with("hostbuf (<< "), "{package}");
    }

    let unpack = "for package in *.deb; do
                      dpkg-deb -x $package system
                      dpkg-deb -e $package control
                      (cd system && md5sum --quiet -c ../control/md5sums)
                      rm -r control
                  done
                  readlink -e system/usr/share/doc/{hostbuf-agents,libhostbuf-dev}/copyright | sed 's|.*/doc/||'";
    assert_eq!(scratch.run(unpack).ok().stdout, "hostbuf/copyright\nlibhostbuf0/copyright\n");
    let runs = "system/usr/bin/hostbuf run --launcher local -n 2 --size 4M --register mlock -- \
                    sh -c 'grep -o system/usr/lib/hostbuf/libhostbuf_preload.so /proc/self/maps | uniq'";
    let said = scratch.run(runs).ok().stdout;
    assert_eq!(said, "system/usr/lib/hostbuf/libhostbuf_preload.so\n".repeat(2));
    let builds = "export PKG_CONFIG_PATH=$(echo $PWD/system/usr/lib/*/pkgconfig)
                  cc $ROOT/tests/fixtures/installed.c -o program $(pkg-config --cflags --libs hostbuf) \
                      -Wl,-rpath,$(pkg-config --variable=libdir hostbuf)
                  ./program";
    if has("pkg-config", "building with the Debian packages") {
        assert_eq!(scratch.run(builds).ok().stdout, "its own: 1048576 bytes\n");
    }
    if !can_simulate() {
        return;
    }
    let system = fs::canonicalize(scratch.folder().join("system")).expect("it is unpacked");
    for flavour in debians {
        let script = format!(
            "{}/usr/bin/hostbuf run -n 2 --mpirun $MPIRUN --host h0:1,h1:1 --size 4M -- sh -c 'echo $HOSTBUF_SIZE'",
            system.display()
        );
        assert_eq!(simulated(2, &flavour, &script).ok().stdout, "4194304\n4194304\n", "{flavour}");
    }
}
