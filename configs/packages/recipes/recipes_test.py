"""The recipes have the version, the options and the libraries of the CMake files."""

import ast
import json
import pathlib
import re
import unittest

RECIPES = pathlib.Path(__file__).parent
ROOT = RECIPES.parents[2]
CMAKE = ROOT / "configs/cmake"

# The name of a library in CMake; in vcpkg, conda-forge and Spack. Gloo's headers are a second source in conda-forge, and protozero's
# in Spack.
PACKAGES = {
    "yaml-cpp": ("yaml-cpp", "yaml-cpp", "yaml-cpp"),
    "md": ("libmd", "libmd", "libmd"),
    "TBB": ("tbb", "tbb-devel", "intel-oneapi-tbb"),
    "ZLIB": ("zlib", "zlib", "zlib"),
    "PNG": ("libpng", "libpng", "libpng"),
    "JPEG": ("libjpeg-turbo", "libjpeg-turbo", "libjpeg-turbo"),
    "hwloc": ("hwloc", "libhwloc", "hwloc"),
    "pcre2": ("pcre2", "pcre2", "pcre2"),
    "utf8proc": ("utf8proc", "libutf8proc", "utf8proc"),
    "nlohmann_json": ("nlohmann-json", "nlohmann_json", "nlohmann-json"),
    "CLI11": ("cli11", "cli11", "cli11"),
    "jemalloc": ("jemalloc", "jemalloc", "jemalloc"),
    "xxHash": ("xxhash", "xxhash", "xxhash"),
    "protozero": ("protozero", "protozero", None),
    "Gloo": ("gloo", None, "gloo"),
    "Torch": ("libtorch", "libtorch", "py-torch"),
}
OF_TESTS = {"GTest", "rapidcheck", "benchmark"}


def text_of(path):
    return path.read_text(encoding="utf-8")


def vcpkg():
    return json.loads(text_of(RECIPES / "vcpkg/accel/vcpkg.json"))


def libraries_of_cmake():
    """What the CMake files require: by name in accel_require, in the loop of optional ones, and in their own messages."""
    text = text_of(CMAKE / "AccelLibraryDependencies.cmake") + text_of(CMAKE / "AccelDependencies.cmake")
    names = set(re.findall(r"^\s*accel_require(?:_library)?\((\w[\w-]*)", text, re.MULTILINE))
    names |= set(re.search(r"foreach\(library IN ITEMS ([^)]*)\)", text).group(1).split())
    names |= {name for name in re.findall(r'"(\w+)(?:\'s headers)? (?:was|were) not found: on Debian', text)}
    return names - OF_TESTS - {"package", "name", "Threads"} | {"Torch"}


def names_in(dependencies):
    return {entry if isinstance(entry, str) else entry["name"] for entry in dependencies}


class RecipesTest(unittest.TestCase):
    def test_each_library_of_cmake_is_in_each_recipe(self):
        self.assertEqual(libraries_of_cmake(), set(PACKAGES))
        manifest = vcpkg()
        of_vcpkg = names_in(manifest["dependencies"])
        for feature in manifest["features"].values():
            of_vcpkg |= names_in(feature["dependencies"])
        host = text_of(RECIPES / "conda-forge/recipe.yaml").split("  host:\n")[1].split("\n\n")[0]
        of_conda = {line.split()[1] for line in host.splitlines()}
        of_spack = set(re.findall(r'depends_on\("([\w-]+)', text_of(RECIPES / "spack/packages/accel/package.py")))
        for column, (found, tools) in enumerate(
            [(of_vcpkg, {"vcpkg-cmake", "vcpkg-cmake-config"}), (of_conda, set()), (of_spack, {"cxx", "cmake", "ninja"})]
        ):
            self.assertEqual(found - tools, {names[column] for names in PACKAGES.values()} - {None})

    def test_versions_are_that_of_the_project(self):
        version = re.search(r"project\(accel VERSION ([\d.]+)", text_of(ROOT / "CMakeLists.txt")).group(1)
        self.assertEqual(vcpkg()["version"], version)
        self.assertIn(f'version: "{version}"\n', text_of(RECIPES / "conda-forge/recipe.yaml"))
        self.assertIn(f'version("{version}"', text_of(RECIPES / "spack/packages/accel/package.py"))

    def test_options_exist(self):
        options = set(re.findall(r"^\s*option\((ACCEL_\w+)", text_of(CMAKE / "AccelOptions.cmake"), re.MULTILINE))
        paths = {"ACCEL_TORCH_ROOT", "ACCEL_GLOO_INCLUDE", "ACCEL_PROTOZERO_INCLUDE"}
        for recipe in ("vcpkg/accel/portfile.cmake", "conda-forge/recipe.yaml", "spack/packages/accel/package.py"):
            used = set(re.findall(r"ACCEL_[A-Z0-9_]+", text_of(RECIPES / recipe)))
            self.assertLessEqual(used, options | paths, recipe)

    def test_features_of_vcpkg_are_in_order_and_have_options(self):
        manifest = vcpkg()
        self.assertEqual(list(manifest["features"]), sorted(manifest["features"]))
        port = text_of(RECIPES / "vcpkg/accel/portfile.cmake")
        self.assertEqual(re.findall(r"^  (\w+) ACCEL_", port, re.MULTILINE), sorted(manifest["features"]))

    def test_the_package_of_spack_is_python(self):
        ast.parse(text_of(RECIPES / "spack/packages/accel/package.py"))


if __name__ == "__main__":
    unittest.main()
