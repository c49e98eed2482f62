// One mistake of distributed programs per name, for ranks of any backend: `hanging_program NAME`. Every program makes a
// few collectives that agree, and then the last rank, or the ranks that the mistake says, do something else.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <iostream>
#include <map>
#include <stdexcept>
#include <thread>

#include <accel/accel.hpp>

namespace {

using accel::ReduceOp;

struct Rank {
  accel::Accelerator accelerator;
  accel::RankContext& context = accel::current_rank();
  accel::Group world = context.world;
  at::Tensor tensor = at::ones({4, 2});

  [[nodiscard]] int rank() const { return context.rank; }
  [[nodiscard]] bool is_last() const { return context.rank == context.world_size - 1; }
  void sum() { world.all_reduce(tensor).wait(); }
};

void sleep_for_ever() {
  while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
}

using Mistake = void (*)(Rank&);

// --- calls that differ -----------------------------------------------------------------------------------------------

void dtype(Rank& rank) {
  auto tensor = rank.is_last() ? rank.tensor.to(at::kInt) : rank.tensor;
  rank.world.all_reduce(tensor).wait();
  std::cout << tensor.sum().item<double>() << std::endl;
}
void operation(Rank& rank) {
  if (rank.is_last())
    rank.world.broadcast(rank.tensor).wait();
  else
    rank.sum();
}
void reduction(Rank& rank) {
  rank.world.all_reduce(rank.tensor, rank.is_last() ? ReduceOp::kMax : ReduceOp::kSum).wait();
}
void shape(Rank& rank) {
  auto tensor = at::ones({rank.is_last() ? 5 : 4, 2});
  rank.world.all_reduce(tensor).wait();
}
void shape_of_equal_size(Rank& rank) {
  auto tensor = rank.is_last() ? at::ones({2, 4}) : at::ones({4, 2});
  rank.world.all_reduce(tensor).wait();
}
void strides(Rank& rank) {
  auto tensor = rank.is_last() ? at::ones({2, 4}).t() : at::ones({4, 2});
  rank.world.all_reduce(tensor).wait();
}
void root(Rank& rank) { rank.world.broadcast(rank.tensor, rank.is_last() ? 1 : 0).wait(); }
void gathered_shape(Rank& rank) { (void)rank.world.all_gather(at::ones({rank.is_last() ? 3 : 2})); }
void scattered_dtype(Rank& rank) {
  const auto type = rank.is_last() ? at::kDouble : at::kFloat;
  auto output = at::zeros({2}, type);
  rank.world.reduce_scatter(output, at::ones({2 * rank.world.size()}, type)).wait();
}
void extra_barrier(Rank& rank) {
  if (rank.rank() == 1) rank.world.barrier();
  rank.sum();
  rank.world.all_reduce(rank.tensor, ReduceOp::kMax).wait();
}
void missing_sum(Rank& rank) {
  if (!rank.is_last()) rank.sum();
  rank.world.broadcast(rank.tensor).wait();
}
// Rank 1 sends three rows to rank 2, which expects two.
void splits(Rank& rank) {
  const std::vector<std::int64_t> expected(rank.world.size(), 2);
  auto sent = expected;
  if (rank.rank() == 1) ++sent[2], --sent[3];
  auto output = at::zeros({2 * rank.world.size(), 5});
  rank.world.all_to_all(output, at::ones({2 * rank.world.size(), 5}), expected, sent).wait();
}
void widths(Rank& rank) {
  const auto tensor = at::ones({rank.world.size(), rank.is_last() ? 3 : 2});
  auto output = at::zeros_like(tensor);
  rank.world.all_to_all(output, tensor).wait();
}
void message_size(Rank& rank) {
  auto tensor = at::ones({rank.rank() == 0 ? 4 : 6});
  if (rank.rank() == 0) rank.world.send(tensor, 1).wait();
  if (rank.rank() == 1) rank.world.recv(tensor, 0).wait();
  rank.world.barrier();
}
void message_dtype(Rank& rank) {
  auto tensor = at::ones({4}, rank.rank() == 0 ? at::kFloat : at::kInt);
  if (rank.rank() == 0) rank.world.send(tensor, 1).wait();
  if (rank.rank() == 1) rank.world.recv(tensor, 0).wait();
  rank.world.barrier();
}
void library_reduction(Rank& rank) { (void)rank.accelerator.reduce(rank.tensor, rank.is_last() ? "mean" : "sum"); }
void library_scale(Rank& rank) { (void)rank.accelerator.reduce(rank.tensor, "sum", rank.is_last() ? 2.0 : 1.0); }
void library_gather(Rank& rank) {
  if (rank.is_last())
    (void)rank.accelerator.gather_for_metrics(rank.tensor);
  else
    (void)rank.accelerator.gather(rank.tensor);
}
void library_pad(Rank& rank) {
  const auto tensor = at::ones({rank.rank() + 1});
  (void)rank.accelerator.pad_across_processes(tensor, {.pad_index = rank.is_last() ? -100.0 : 0.0});
}
void checkpoint_name(Rank& rank) {
  rank.accelerator.save_state(std::string("/tmp/accel-hanging-") + (rank.is_last() ? "b" : "a"));
}

// --- ranks that wait for each other, or for one that has ended -------------------------------------------------------

void early_return(Rank& rank) {
  if (!rank.is_last()) rank.sum();
}
void loop_lengths(Rank& rank) {
  for (int step = 0; step < (rank.is_last() ? 3 : 4); ++step) rank.sum();
}
void barrier_of_main(Rank& rank) {
  if (rank.accelerator.is_main_process()) rank.accelerator.wait_for_everyone();
}
void main_process_reduces(Rank& rank) {
  if (rank.accelerator.is_main_process()) (void)rank.accelerator.reduce(rank.tensor);
}
void group_order(Rank& rank) {
  auto a = rank.context.new_group({0, 1}), b = rank.context.new_group({0, 1});
  if (rank.rank() > 1) return;
  auto& first = rank.rank() == 0 ? a : b;
  auto& second = rank.rank() == 0 ? b : a;
  first.all_reduce(rank.tensor).wait();
  second.all_reduce(rank.tensor).wait();
}
void cycle_of_receives(Rank& rank) {
  rank.world.recv(rank.tensor, (rank.rank() + 1) % rank.world.size()).wait();
  rank.world.send(rank.tensor, (rank.rank() + rank.world.size() - 1) % rank.world.size()).wait();
}
void receive_without_send(Rank& rank) {
  if (rank.rank() == 0) rank.world.recv(rank.tensor, 1).wait();
}
void receive_and_barrier(Rank& rank) {
  if (rank.rank() == 0) rank.world.recv(rank.tensor, 1).wait();
  rank.world.barrier();
}
void quick_exit(Rank& rank) {
  if (rank.is_last()) std::exit(0);
  rank.sum();
}

// --- ranks that fail -------------------------------------------------------------------------------------------------

void exception(Rank& rank) {
  if (rank.is_last()) throw std::runtime_error("the disk of rank 3 is full");
  rank.sum();
}
void segmentation_fault(Rank& rank) {
  if (rank.is_last()) raise(SIGSEGV);
  rank.sum();
}
void exit_code(Rank& rank) {
  if (rank.is_last()) _exit(7);
  rank.sum();
}

// --- ranks that may only be slow -------------------------------------------------------------------------------------

void stopped(Rank& rank) {
  if (rank.is_last()) raise(SIGSTOP);
  rank.sum();
}
void endless_loop(Rank& rank) {
  if (rank.is_last()) {
    for (volatile int i = 0;; i = i + 1) {
    }
  }
  rank.sum();
}
void sleeping(Rank& rank) {
  if (rank.is_last()) sleep_for_ever();
  rank.sum();
}
void reading(Rank& rank) {
  if (rank.is_last()) {
    int ends[2] = {};
    char byte = 0;
    if (pipe(ends) == 0) (void)!read(ends[0], &byte, 1);
  }
  rank.sum();
}
void slow(Rank& rank) {
  if (rank.is_last()) std::this_thread::sleep_for(std::chrono::seconds(4));
  rank.sum();
}
void none(Rank& rank) { rank.sum(); }

const std::map<std::string, Mistake> kMistakes = {
    {"dtype", dtype},
    {"operation", operation},
    {"reduction", reduction},
    {"shape", shape},
    {"shape_of_equal_size", shape_of_equal_size},
    {"strides", strides},
    {"root", root},
    {"gathered_shape", gathered_shape},
    {"scattered_dtype", scattered_dtype},
    {"extra_barrier", extra_barrier},
    {"missing_sum", missing_sum},
    {"splits", splits},
    {"widths", widths},
    {"message_size", message_size},
    {"message_dtype", message_dtype},
    {"library_reduction", library_reduction},
    {"library_scale", library_scale},
    {"library_gather", library_gather},
    {"library_pad", library_pad},
    {"checkpoint_name", checkpoint_name},
    {"early_return", early_return},
    {"loop_lengths", loop_lengths},
    {"barrier_of_main", barrier_of_main},
    {"main_process_reduces", main_process_reduces},
    {"group_order", group_order},
    {"cycle_of_receives", cycle_of_receives},
    {"receive_without_send", receive_without_send},
    {"receive_and_barrier", receive_and_barrier},
    {"quick_exit", quick_exit},
    {"exception", exception},
    {"segmentation_fault", segmentation_fault},
    {"exit_code", exit_code},
    {"stopped", stopped},
    {"endless_loop", endless_loop},
    {"sleeping", sleeping},
    {"reading", reading},
    {"slow", slow},
    {"none", none},
};

int train(int argc, char** argv) {
  Rank rank;
  for (int step = 0; step < 2; ++step) rank.sum();
  kMistakes.at(argc > 1 ? argv[1] : "none")(rank);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
