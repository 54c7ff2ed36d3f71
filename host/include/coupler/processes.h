// The processes of a job and their state: Processes, the common base of Accelerator and
// PartialState; Mesh, how they are arranged; PartialState, AcceleratorState and GradientState,
// which make the program's Accelerator available anywhere; and seeds of random numbers. Used by the
// training thread.
//
//   if (coupler::PartialState().is_main_process()) write_report();
#pragma once

#include <coupler/error.h>

#include <array>
#include <cstdint>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace c10 {
struct Device;
}

namespace coupler {

namespace detail {

// Prints to standard output; an active progress bar is moved below it. [any-thread]
void print_line(const std::string& line);

}  // namespace detail

// Ranks count from 0; "local" refers to this machine.
struct ProcessPlace {
  int rank = 0;              // among all processes
  int world_size = 1;        // number of processes
  int local_rank = 0;        // among the processes of this machine
  int local_world_size = 1;  // number of processes on this machine
};

// This process's rank within the job, and helpers for code that only some processes run or that one
// runs before the others.
class Processes {
 public:
  virtual ~Processes() = default;

  // See ProcessPlace. The main process is rank 0; the local main process is local rank 0.
  int rank() const { return place_.rank; }
  int world_size() const { return place_.world_size; }
  int local_rank() const { return place_.local_rank; }
  int local_world_size() const { return place_.local_world_size; }
  bool is_main_process() const { return rank() == 0; }
  bool is_local_main_process() const { return local_rank() == 0; }
  bool is_last_process() const { return rank() == world_size() - 1; }

  // Returns when every process has called it. Throws Error if one does not. Collective.
  virtual void wait_for_everyone(CallSite site = {}) = 0;

  // Call function() only on the named process; do nothing on the others. Not collective.
  template <class Function>
  void on_main_process(Function&& function) const {
    if (is_main_process()) std::forward<Function>(function)();
  }
  template <class Function>
  void on_local_main_process(Function&& function) const {
    if (is_local_main_process()) std::forward<Function>(function)();
  }
  template <class Function>
  void on_last_process(Function&& function) const {
    if (is_last_process()) std::forward<Function>(function)();
  }
  template <class Function>
  void on_process(int index, Function&& function) const {
    if (rank() == index) std::forward<Function>(function)();
  }
  template <class Function>
  void on_local_process(int index, Function&& function) const {
    if (local_rank() == index) std::forward<Function>(function)();
  }

  // Call function() on every process: first on the main one (local form: on each machine's local
  // main one), then, after it has returned or thrown there, on the others. Return its local result.
  //   auto data = accelerator.main_process_first([] { return load_or_download(); });
  // Collective; function itself must not call collectives.
  template <class Function>
  auto main_process_first(Function&& function) {
    return goes_first(is_main_process(), std::forward<Function>(function));
  }
  template <class Function>
  auto local_main_process_first(Function&& function) {
    return goes_first(is_local_main_process(), std::forward<Function>(function));
  }

  // Writes its arguments and a newline to standard output, once per machine.
  template <class... Args>
  void print(const Args&... args) const {
    if (!is_local_main_process()) return;
    std::ostringstream line;
    (line << ... << args);
    line << '\n';
    detail::print_line(line.str());
  }

 protected:
  Processes() = default;
  Processes(const Processes&) = default;
  Processes& operator=(const Processes&) = default;
  // Called by the constructor of a class that knows the place.
  void set_place(const ProcessPlace& place) { place_ = place; }

 private:
  template <class Function>
  auto goes_first(bool first, Function&& function) -> decltype(function()) {
    if (!first) {
      wait_for_everyone();
      return function();
    }
    using Result = decltype(function());
    if constexpr (std::is_void_v<Result>) {
      release_others_on_throw(function);
      wait_for_everyone();
    } else {
      std::optional<Result> result;
      release_others_on_throw([&] { result.emplace(function()); });
      wait_for_everyone();
      return std::move(*result);
    }
  }

  template <class Function>
  void release_others_on_throw(Function&& function) {
    try {
      function();
    } catch (...) {
      wait_for_everyone();
      throw;
    }
  }

  ProcessPlace place_;
};

// How the ranks of a job are arranged: a grid with a dimension for each way to divide the work.
// From outside in these are pipeline, data, shard, expert, context and tensor, so the ranks of a
// tensor group are neighbors. [parallel] sets their sizes; otherwise all ranks are along data. A
// *group* of some dimensions are the ranks that differ in these only. Its name is that of a
// dimension, or those of several joined by '+' in any order ("data+shard"), or "world" for all
// ranks. Immutable; [any-thread]. See docs/parallelism.md.
//
// size, rank and ranks throw Error(kInvalidArgument) if there is no such dimension.
class Mesh {
 public:
  static constexpr int kDimensions = 6;        // how many there are
  using Sizes = std::array<int, kDimensions>;  // from outside in, each at least 1

  // As rank `rank` of the job sees it, from 0 to the product of the sizes - 1.
  Mesh(const Sizes& sizes, int rank) : sizes_(sizes), rank_(rank) {}

  static const std::array<const char*, kDimensions>& dimensions();  // names, from outside in
  const Sizes& sizes() const { return sizes_; }  // of the dimensions, in that order

  int size(const std::string& group) const;                // number of ranks in the group
  int rank(const std::string& group) const;                // this rank's place in it, from 0
  std::vector<int> ranks(const std::string& group) const;  // its ranks in the job, ascending

  // The grid with the number of each rank, in lines. Only dimensions larger than 1 appear; of more
  // than 32 rows, the last are left out.
  std::string text() const;

 private:
  Sizes sizes_;
  int rank_;
};

// For set_seed.
struct SeedOptions {
  // Adds the rank, so that every process draws its own numbers. With tensor parallelism, adds the
  // number of the tensor group instead: its ranks draw the same, such as dropout after a layer.
  bool device_specific = false;
  bool deterministic = false;  // operations without a deterministic algorithm throw from now on
};

// Seeds LibTorch's generators and std::rand; call it before other threads draw. A data loader's
// order is not affected: it depends on the loader's own seed and epoch. Not collective.
void set_seed(uint64_t seed, const SeedOptions& options = {});

class Accelerator;

// This process's rank. Before an Accelerator exists, it is taken from the launcher's variables.
class PartialState : public Processes {
 public:
  // Throws Error(kConfig) if the launcher's variables contradict each other.
  PartialState();

  // Throws Error(kUsage) for several processes without an Accelerator.
  void wait_for_everyone(CallSite site = {}) override;
};

// How this process trains. The constructor throws Error(kUsage) if there is no Accelerator.
class AcceleratorState {
 public:
  AcceleratorState();

  static bool exists();  // whether there is an Accelerator

  // As in Accelerator.
  c10::Device device() const;
  std::string backend() const;          // its name; "single" for one process
  std::string mixed_precision() const;  // "no", "bf16", "fp16", "fp8"
  // As in Accelerator.
  int64_t gradient_accumulation_steps() const;

 private:
  Accelerator* accelerator_;
};

// The program's position in the training loop. Without an Accelerator: as for one process without
// accumulation, outside of any loop.
class GradientState {
 public:
  GradientState();

  int64_t num_steps() const;       // gradient_accumulation_steps
  bool sync_gradients() const;     // see Accelerator::sync_gradients
  bool in_dataloader() const;      // whether a loop over a prepared loader is running
  bool end_of_dataloader() const;  // whether its batch is the epoch's last; false outside
  // How many leading samples of its batch are not repeated to fill it; -1 outside.
  int64_t own_samples() const;

 private:
  Accelerator* accelerator_;  // null: none
};

}  // namespace coupler
