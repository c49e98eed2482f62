import pathlib

from spack_repo.builtin.build_systems.cmake import CMakePackage, generator

from spack.package import *


class Accel(CMakePackage):
    """Hugging Face Accelerate in C++, with a simulator of distributed training."""

    # To publish the package, replace this checkout by the archives of releases.
    git = str(pathlib.Path(__file__).resolve().parents[6])

    license("Apache-2.0")

    version("0.1.0", branch="main")

    variant(
        "hwloc",
        default=True,
        description="Place the ranks of a machine on its cores by its topology",
    )
    variant("jpeg", default=True, description="Read JPEG images")
    variant("pcre2", default=True, description="Read tokenizers")
    variant("png", default=True, description="Read PNG images, and log images to trackers")
    variant("programs", default=True, description="The programs sim-run, sim-calibrate and accel")
    variant("utf8proc", default=True, description="Read tokenizers that normalize their text")

    # Headers of protozero, which Spack has no package of.
    resource(
        name="protozero",
        git="https://github.com/mapbox/protozero.git",
        tag="v1.8.1",
        placement="protozero",
    )

    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("gloo", type="build")
    depends_on("intel-oneapi-tbb")
    depends_on("libmd")
    depends_on("nlohmann-json", type="build")
    depends_on("py-torch@2.11:2.15 +distributed +gloo")
    depends_on("xxhash", type="build")
    depends_on("yaml-cpp")
    depends_on("zlib")
    depends_on("hwloc", when="+hwloc")
    depends_on("libjpeg-turbo", when="+jpeg")
    depends_on("pcre2", when="+pcre2")
    depends_on("libpng", when="+png")
    depends_on("utf8proc", when="+utf8proc")
    depends_on("cli11", type="build", when="+programs")
    depends_on("jemalloc", when="+programs")

    generator("ninja")

    def cmake_args(self):
        return [
            self.define(
                "Torch_DIR",
                join_path(self.spec["py-torch"].package.cmake_prefix_paths[0], "Torch"),
            ),
            self.define(
                "ACCEL_PROTOZERO_INCLUDE",
                join_path(self.stage.source_path, "protozero", "include"),
            ),
            self.define("ACCEL_INSTALL_TORCH", False),
            self.define("ACCEL_ARROW", False),
            self.define("ACCEL_BUILD_TESTS", False),
            self.define("ACCEL_BUILD_BENCH", False),
            self.define_from_variant("ACCEL_HWLOC", "hwloc"),
            self.define_from_variant("ACCEL_JPEG", "jpeg"),
            self.define_from_variant("ACCEL_PCRE2", "pcre2"),
            self.define_from_variant("ACCEL_PNG", "png"),
            self.define_from_variant("ACCEL_BUILD_PROGRAMS", "programs"),
            self.define_from_variant("ACCEL_UTF8PROC", "utf8proc"),
        ]
