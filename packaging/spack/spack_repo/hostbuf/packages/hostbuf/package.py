from pathlib import Path

from spack_repo.builtin.build_systems.generic import Package

from spack.package import *


class Hostbuf(Package):
    """One buffer per host of an MPI job, at one address in every rank on every host: the command
    hostbuf, its agents, and libhostbuf for C, C++ and Fortran."""

    # No address of the sources is public yet, so Spack clones the repository with this recipe.
    git = Path(__file__).resolve().parents[6].as_uri()

    license("MIT OR Apache-2.0")

    version("main", branch="main")
    # At a release: version("X.Y.Z", sha256="..."), and the url of its archive above.

    variant("mpi", default=True, description="Build an agent for Spack's MPI as well as that for the standard ABI of MPI 5")
    variant("rdma", default=False, description="Register buffers with RDMA devices")

    depends_on("c", type="build")
    depends_on("rust@1.88:", type="build")
    depends_on("binutils", type="build")
    depends_on("pkgconfig", type="build")

    # The bindings to an MPI and to libibverbs are generated.
    depends_on("llvm+clang", type="build", when="+mpi")
    depends_on("llvm+clang", type="build", when="+rdma")

    depends_on("mpi", when="+mpi")
    requires("^[virtuals=mpi] openmpi@5", "^[virtuals=mpi] mpich", policy="one_of", when="+mpi")

    depends_on("cmake", type="build", when="+rdma")
    depends_on("libnl", when="+rdma")
    depends_on("rdma-core", when="+rdma")

    sanity_check_is_file = ["bin/hostbuf", "include/hostbuf.h", "lib/libhostbuf.so", "lib/libhostbuf.a"]

    def setup_build_environment(self, env):
        env.set("CARGO_HOME", join_path(self.stage.path, "cargo"))
        if self.spec.satisfies("+mpi") or self.spec.satisfies("+rdma"):
            env.set("LIBCLANG_PATH", self.spec["llvm"].prefix.lib)
        if self.spec.satisfies("~rdma"):
            # scripts/build adds RDMA if pkg-config finds libibverbs in the system's folders.
            env.set("PKG_CONFIG_LIBDIR", join_path(self.stage.path, "none"))

    def setup_run_environment(self, env):
        env.set("HOSTBUF_ROOT", self.prefix)

    def install(self, spec, prefix):
        agents = []
        if spec.satisfies("+mpi"):
            agent = "openmpi5" if spec.satisfies("^[virtuals=mpi] openmpi") else "mpich-abi"
            agents = [f"{agent}={spec['mpi'].prefix}"]
        Executable(join_path(".", "scripts", "install"))("--prefix", prefix, *agents)

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        hostbuf = Executable(join_path(self.prefix.bin, "hostbuf"))
        hostbuf("run", "--launcher", "local", "-n", "2", "--size", "4M", "--", "true")
