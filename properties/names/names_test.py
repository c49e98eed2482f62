"""Tests of the table of Accelerate's names: python3 -m unittest names_test, with ACCEL_BIN_DIR set"""
import os
import pathlib
import tempfile
import unittest

import cpp_headers
import name_table
import names
import page

HEADER = """#pragma once
#include <vector>
#include "inner.hpp"
/// No name: class Comment {};
namespace accel {
enum class Kind { kOne, kMultiGpu = 4 };
using Alias = std::map<std::string, int>;
struct GatherOptions {
  bool even = true;  ///< a comment
  std::optional<int> first = {}, second = {};
  std::function<Tensor(const Tensor& step, int part)> slice;
};
template <typename T>
  requires Tree<T>
class Loader : public virtual Base<T> {
 public:
  explicit Loader(T dataset, GatherOptions options = {}) : dataset_(std::move(dataset)), count_{0} {}
  Loader(std::nullptr_t) {}
  Loader* operator->() { return this; }
  friend Archive& operator<<(Archive& archive, const Loader& loader) { return archive << loader.name; }
  struct Options {
    int width = 0;
  };
  template <typename... Parts>
  [[nodiscard]] auto read(const Parts&... parts) const -> decltype(first(parts...)) {
    if (a < b && c > d) return Hidden{1};
    return {};
  }
  virtual void store(const Value::Dict& /*values*/, Options options = {}) {}
  using ReadOptions = accel::Base<T>::Limits;
  void limit(ReadOptions other);

 private:
  int secret() const;
  struct Secret {};
  T dataset_;
};
namespace detail {
void helper(int x);
}
void gather(const std::map<std::string, int>& tree, const GatherOptions& options = {false},
            std::source_location where = std::source_location::current());
}  // namespace accel
"""
INNER = """namespace accel {
template <typename T>
struct Base {
  struct Limits {
    int lowest = 0;
  };
  bool is_open() const { return true; }
  int lanes = 1;
};
}  // namespace accel
"""
HELP = """Usage: accel launch [OPTIONS] PROGRAM
  --num_processes N        Total; see --log-dir
"""
KEYS = """Key("fp8_margin", kInteger)
        .in_variable("A").unused(kReason),
    Key("fp8_backend", kChoice).one_of(kBackends),
    Key("hostfile", kText).refused(kReason)"""
CLASSES = {
    "parameters": {"tensor": ["tree"]},
    "here": {"Accelerator.state": "Loader.read"},
    "values": {"Precision": {"option": "GatherOptions.even", "values": ["fp16"]}},
    "differs": [{"names": ["tqdm"], "accel": "accel::gather, Loader::read", "link": "a.md#b"}],
    "refused": [{"names": ["Xla*", "Megatron", "gather(dim)"], "reason": "It needs XLA."}, {"names": ["hook"], "reason": "hooks"}],
}
OURS = {"gather", "gather(tree)", "Loader", "Loader.read", "GatherOptions.even"}
THEIRS = ["gather", "gather(tensor)", "gather(dim)", "Accelerator.state", "Loader.read", "Precision", "Precision.FP16", "tqdm", "tqdm(desc)", "XlaThing", "Megatron", "Megatron.engine", "Megatron.engine(data)",
          "hook", "Loader"]  # fmt: skip


def headers_of(**files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (pathlib.Path(folder) / f"{name}.hpp").write_text(text)
        return cpp_headers.Headers(pathlib.Path(folder), ["outer.hpp"])


def table_of(theirs=THEIRS, ours=OURS, literals=("fp16",), **changes):
    return name_table.Table(CLASSES | changes, theirs, ours, literals)


class HeadersTest(unittest.TestCase):
    def setUp(self):
        self.headers = headers_of(outer=HEADER, inner=INNER)
        self.names = names.of_headers(self.headers)

    def test_declarations_are_found_and_nothing_else(self):
        self.assertEqual(self.headers.paths, ["outer.hpp", "inner.hpp"])
        self.assertEqual(set(self.headers.classes), {"Base", "Base::Limits", "GatherOptions", "Loader", "Loader::Options"})
        self.assertEqual(set(self.headers.free.functions), {"gather"})
        self.assertEqual(self.headers.classes["GatherOptions"].fields, ["even", "first", "second", "slice"])
        self.assertEqual(self.headers.classes["Loader"].fields, [])
        self.assertEqual(set(self.headers.classes["Loader"].functions), {"Loader", "limit", "read", "store"})

    def test_parameters_are_those_of_overloads_bases_and_options(self):
        self.assertEqual({name for name in self.names if name.startswith("gather")},
                         {"gather", *(f"gather({each})" for each in ("tree", "options", "where", "even", "first", "second", "slice"))})  # fmt: skip
        self.assertEqual({name for name in self.names if name.startswith("Loader.")},
                         {"Loader.is_open", "Loader.lanes", "Loader.read", "Loader.read(parts)", "Loader.store", "Loader.store(values)", "Loader.store(options)", "Loader.store(width)", "Loader.limit", "Loader.limit(other)", "Loader.limit(lowest)"})  # fmt: skip
        self.assertIn("Loader(dataset)", self.names)
        self.assertIn("Loader(second)", self.names)

    def test_enumerators_are_spelled_as_in_python(self):
        self.assertLessEqual({"Kind.ONE", "Kind.MULTI_GPU", "Alias"}, self.names)


class NamesTest(unittest.TestCase):
    def test_a_recorded_name_is_expanded_and_its_owner_found(self):
        self.assertEqual(names.expanded({"A.f": ["x"], "accelerate env": ["--y"]}), ["A.f", "A.f(x)", "accelerate env", "accelerate env --y"])
        self.assertEqual([names.owner_of(name) for name in ("A.f(x)", "A.f", "A", "accelerate env --y")], ["A.f", "A", None, "accelerate env"])

    def test_flags_are_read_from_the_help(self):
        self.assertEqual(names.of_help("accelerate launch", HELP), {"accelerate launch", *(f"accelerate launch {each}" for each in ("--num_processes", "--log_dir", "PROGRAM", "OPTIONS"))})

    def test_keys_that_are_unused_or_refused_do_not_count(self):
        self.assertEqual(names.keys_without_effect(KEYS), {"fp8_margin", "hostfile"})


class TableTest(unittest.TestCase):
    def test_every_name_gets_its_class(self):
        table = table_of()
        self.assertEqual(table.problems(), [])
        kinds = {name: classified.kind for name, classified in table.classified.items()}
        self.assertEqual({name for name, kind in kinds.items() if kind == "here"}, {"gather", "gather(tensor)", "Accelerator.state", "Loader", "Loader.read", "Precision", "Precision.FP16"})
        self.assertEqual({name for name, kind in kinds.items() if kind == "refused"}, {"gather(dim)", "XlaThing", "Megatron", "Megatron.engine", "Megatron.engine(data)", "hook"})
        self.assertEqual(kinds["tqdm(desc)"], "differs")
        self.assertEqual(table.classified["gather(tensor)"].ours, "gather(tree)")

    def test_a_name_without_a_class_is_a_problem(self):
        self.assertEqual(table_of(THEIRS + ["reduce", "gather(x)"]).problems(), [f"{name}: no class; add an entry to {name_table.CLASSES}" for name in ("reduce", "gather(x)")])

    def test_an_entry_for_a_name_that_accelerate_lacks_is_a_problem(self):
        without = [name for name in THEIRS if name not in ("XlaThing", "Accelerator.state")]
        self.assertEqual(table_of(without).problems(), [f"{name}: decides no name of Accelerate; remove it" for name in ("Accelerator.state", "Xla*")])

    def test_our_name_must_exist(self):
        self.assertEqual(table_of(here={"Accelerator.state": "Loader.write"}).problems(),
                         ["Accelerator.state: no class; add an entry to properties/names/classes.toml", "Accelerator.state = Loader.write: there is no such name in our headers and programs"])  # fmt: skip
        self.assertEqual(table_of(ours=OURS - {"Loader.read"})
                         .problems()[-1], "tqdm: its text names Loader.read, which does not exist")  # fmt: skip

    def test_a_value_must_be_a_string_of_our_sources(self):
        self.assertEqual(len(table_of(literals=()).problems()), 1)

    def test_refused_names_must_not_exist(self):
        self.assertEqual(table_of(ours=OURS | {"hook", "Megatron"}).problems(), [f"{name}: refused, but {name} exists; remove the entry" for name in ("Megatron", "hook")])

    def test_a_name_has_one_entry(self):
        self.assertEqual(table_of(refused=[*CLASSES["refused"], {"names": ["tqdm"], "reason": "again"}]).problems()[-1], "tqdm: has 2 entries; keep one")

    def test_links_name_headings(self):
        with tempfile.TemporaryDirectory() as folder:
            guide = pathlib.Path(folder)
            (guide / "a.md").write_text("# A: the `page`\n\n## B\n")
            self.assertEqual(name_table.link_problems(table_of(), guide), [])
            self.assertTrue(name_table.resolves("a.md#a-the-page", guide))
            (guide / "a.md").write_text("# A\n")
            self.assertEqual(name_table.link_problems(table_of(), guide), ["a.md#b: no such heading"])


class PageTest(unittest.TestCase):
    def test_rows_show_our_names_reasons_and_counts(self):
        text = page.text_of(table_of())
        for line in ("| `gather(tensor)` | `gather(tree)` |", "| `Loader` |  |", "| `Accelerator.state` | `Loader.read` |", '| `Precision.FP16` | `GatherOptions.even = "fp16"` |', "| `tqdm` | accel::gather, Loader::read | [a.md#b](../reference/guide/a.md#b) |",
                     "| `gather(dim)`, `XlaThing`, `Megatron` | It needs XLA. |", "| `hook` | hooks |", "| here | 7 |", "| all | 15 |"):  # fmt: skip
            self.assertIn(line + "\n", text)


class RepositoryTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.table = name_table.table_of_repository(pathlib.Path(os.environ["ACCEL_BIN_DIR"]))

    def test_every_name_has_a_class(self):
        problems = self.table.problems() + name_table.link_problems(self.table, name_table.ROOT / name_table.GUIDE)
        self.assertEqual(problems, [])

    def test_the_page_is_current(self):
        again = "python3 properties/names/name_table.py --bin build/release/bin --write"
        self.assertEqual((name_table.ROOT / page.PATH).read_text(), page.text_of(self.table), f"{page.PATH} is stale; write it again: {again}")

    def test_headers_are_read_completely(self):
        """A few names of every kind, so that a change of the headers' style is noticed."""
        for name in ("Accelerator.prepare_model(evaluation_mode)", "Accelerator(mixed_precision)", "DataLoaderShard.total_batch_size", "DistributedType.MULTI_GPU", "accelerate launch --num_processes",
                     "infer_auto_device_map(fallback_allocation)"):  # fmt: skip
            self.assertIn(name, self.table.ours)


if __name__ == "__main__":
    unittest.main()
