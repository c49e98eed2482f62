// Python's end of a rank that is a process: the backend as a class that PyTorch can register, the shared memory for the
// process that forks the ranks, and the line of the program that makes a call.
#include <ATen/record_function.h>
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <unordered_map>

#include "backends/process/process_backend.hpp"
#include "backends/process/update_report.hpp"
#include "backends/process/watched_writes.hpp"
#include "reference/comm/fingerprint.hpp"
#include "reference/comm/operator_watch.hpp"
#include "reference/comm/parameter_state.hpp"
#include "reference/comm/tensor_fingerprint.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/system/futex.hpp"

namespace accel::process {
namespace {

namespace py = pybind11;

// Whose code a frame runs. The line of a call is the innermost one of the program, else of a library.
enum class Owner { kProgram, kLibrary, kMachinery };

struct Owners {
  std::string program;                              // a file that is the program's wherever it lies
  std::vector<std::string> libraries, machineries;  // prefixes of paths; the longest that fits decides
};

// What this process knows of its rank. A process is one rank for the whole of its life.
struct Rank {
  std::shared_ptr<RankLink> link;
  std::shared_ptr<ProgramHooks> hooks = std::make_shared<ProgramHooks>();
  Owners owners;
};
Rank& this_rank() {
  static Rank rank;
  return rank;
}

Owner owner_of(const std::string& file, const Owners& owners) {
  if (file == owners.program) return Owner::kProgram;
  if (file.starts_with("<")) return Owner::kMachinery;
  std::size_t longest = 0;
  auto owner = Owner::kProgram;
  const auto look_in = [&](const std::vector<std::string>& prefixes, Owner of) {
    for (const auto& prefix : prefixes) {
      if (prefix.size() <= longest || !file.starts_with(prefix)) continue;
      longest = prefix.size();
      owner = of;
    }
  };
  look_in(owners.libraries, Owner::kLibrary);
  look_in(owners.machineries, Owner::kMachinery);
  return owner;
}

// Walks the frames of the calling thread outwards; 0.3 to 1 us. Code objects and file names are kept, so their
// addresses identify them.
std::pair<std::string, std::uint32_t> current_line() {
  struct File {
    Owner owner;
    std::string name;
  };
  static std::unordered_map<PyObject*, File> files;
  const py::gil_scoped_acquire gil;
  std::pair<std::string, std::uint32_t> line;
  auto best = Owner::kMachinery;
  auto* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr && best != Owner::kProgram) {
    auto* code = PyFrame_GetCode(frame);
    auto [file, is_new] = files.try_emplace(code->co_filename);
    if (is_new) {
      Py_INCREF(code->co_filename);
      const auto* name = PyUnicode_AsUTF8(code->co_filename);
      file->second.name = name != nullptr ? name : "?";
      file->second.owner = owner_of(file->second.name, this_rank().owners);
    }
    if (file->second.owner < best) {
      best = file->second.owner;
      line = {file->second.name, static_cast<std::uint32_t>(PyFrame_GetLineNumber(frame))};
    }
    Py_DECREF(code);
    auto* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  return line;
}

// Whoever calls getFuture from Python may wait for it there, inside a communication hook for example.
bool waits_in_python(const std::function<void()>& wait) {
  if (PyGILState_Check() == 0) return false;
  const py::gil_scoped_release released;
  wait();
  return true;
}

void become(const std::shared_ptr<SharedArea>& area, int rank, Owners owners) {
  auto& self = this_rank();
  self.link = std::make_shared<RankLink>(area, rank);
  self.owners = std::move(owners);
  self.hooks->line = current_line;
  self.hooks->waits_for_futures = waits_in_python;
  watch_writes(self.link);
}

RankLink& link() {
  check_state(this_rank().link != nullptr, "this process is not a simulated rank; start it by sim-run");
  return *this_rank().link;
}

MessageWriter request(Request kind) { return begin_request(kind, *this_rank().hooks); }

struct Unwatched {
  std::unique_ptr<at::DisableRecordFunctionGuard> guard;
};

void check_has_memory(const at::Tensor& tensor) {
  check_argument(has_memory(tensor) || tensor.numel() == 0, "a tensor without elements in memory has no fingerprint");
}

std::uint64_t fingerprint_of(const at::Tensor& tensor) {
  check_has_memory(tensor);
  const at::DisableRecordFunctionGuard unwatched;
  return fingerprint(tensor);
}

void updated(const std::vector<std::pair<std::string, at::Tensor>>& parameters, const std::string& generator) {
  auto message = request(Request::kUpdated);  // before hashing, which is not part of the program
  UpdateReport report{.generator = fingerprint(generator.data(), generator.size()), .parameters = {}};
  for (const auto& [name, parameter] : parameters) {
    check_has_memory(parameter);
    const at::DisableRecordFunctionGuard unwatched;
    const auto state = state_of(parameter);
    report.parameters.push_back({.name = name,
                                 .sizes = parameter.sizes().vec(),
                                 .state = {.hash = state.hash,
                                           .dtype = static_cast<std::int8_t>(state.dtype),
                                           .gradient = static_cast<std::int32_t>(state.gradient),
                                           .gradient_hash = state.gradient_hash}});
  }
  report.processor_seconds = processor_seconds();
  message << report;
  const py::gil_scoped_release released;
  link().ask(message);
}

}  // namespace
}  // namespace accel::process

PYBIND11_MODULE(_native, module) {
  namespace py = pybind11;
  using namespace accel::process;

  py::class_<Owners>(module, "Owners")
      .def(py::init([](std::string program, std::vector<std::string> libraries, std::vector<std::string> machineries) {
             return Owners{std::move(program), std::move(libraries), std::move(machineries)};
           }),
           py::arg("program"), py::arg("libraries"), py::arg("machineries"));

  py::class_<SharedArea, std::shared_ptr<SharedArea>>(module, "SharedArea")
      .def_static("create", &SharedArea::create)
      .def_static("attach", &SharedArea::attach)
      .def_property_readonly("descriptor", &SharedArea::descriptor)
      .def_property_readonly("num_ranks", &SharedArea::num_ranks)
      .def("set_ready",
           [](SharedArea& area) {
             area.ready() = 1;
             accel::futex_wake(area.ready(), accel::FutexScope::kProcesses);
           })
      .def("set_pid", [](SharedArea& area, int rank, int pid) { area.channel(rank).end.pid = pid; })
      .def("record_end", &SharedArea::record_end, py::arg("rank"), py::arg("status"))
      .def("record_lost_ends", &SharedArea::record_lost_ends, py::arg("status"));

  module.def("become", &become);
  module.def("line", &current_line);
  module.def("fail", [](const std::string& text) {
    unwatch_writes();
    link().post(request(Request::kFail).put(text));
  });
  module.def("warn", [](const std::string& text) { link().post(request(Request::kWarn).put(text)); });
  module.def("divide", [](const std::string& name, std::uint64_t hash, const std::string& file, std::uint32_t line) {
    link().post_before_next(request(Request::kDivide).put(name).put(hash).put(file).put(line));
  });
  module.def("phase", [](const std::string& name) { link().post(request(Request::kPhase).put(name)); });
  module.def("backward", [](double loss) {
    const auto message = request(Request::kBackward).put(loss);
    const py::gil_scoped_release released;
    link().ask(message);
  });
  module.def("update", [] {
    const auto message = request(Request::kUpdate);
    const py::gil_scoped_release released;
    link().ask(message);
  });
  module.def("fingerprint", &fingerprint_of);
  // `with unwatched():` what is observed here is not done by the program.
  py::class_<Unwatched>(module, "unwatched")
      .def(py::init())
      .def("__enter__", [](Unwatched& self) { self.guard = std::make_unique<at::DisableRecordFunctionGuard>(); })
      .def("__exit__", [](Unwatched& self, const py::args&) { self.guard.reset(); });
  module.def("updated", &updated, py::arg("parameters"), py::arg("generator"));

  py::class_<ProcessBackend, c10d::Backend, c10::intrusive_ptr<ProcessBackend>>(module, "ProcessBackend")
      .def(py::init([](const py::object& /*store*/, int rank, int size, const py::object& /*timeout*/) {
             link();
             return c10::make_intrusive<ProcessBackend>(this_rank().link, this_rank().hooks, rank, size);
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout") = py::none())
      .def("_set_default_timeout",
           [](ProcessBackend& backend, std::chrono::milliseconds timeout) { backend.setTimeout(timeout); })
      .def_property_readonly("options", &ProcessBackend::getBackendOptions);
}
