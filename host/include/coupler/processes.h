// Processes: who this process is among those of the job, and code that only some of them run or
// that one runs before the others. What Accelerator and PartialState have in common. Used by the
// thread that trains.
#pragma once

#include <coupler/call_site.h>

#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

namespace coupler {

namespace detail {

// To standard output; a progress bar that is being drawn is moved below it. [any-thread]
void print_line(const std::string& line);

}  // namespace detail

// Ranks count from 0; "local" is on this machine.
struct ProcessPlace {
  int rank = 0;         // among all processes
  int world = 1;        // how many there are
  int local_rank = 0;   // among those of this machine
  int local_world = 1;  // how many this machine has
};

class Processes {
 public:
  virtual ~Processes() = default;

  // Of ProcessPlace. The main process is rank 0, the local main process rank 0 of its machine.
  int rank() const { return place_.rank; }
  int world() const { return place_.world; }
  int local_rank() const { return place_.local_rank; }
  int local_world() const { return place_.local_world; }
  bool is_main_process() const { return rank() == 0; }
  bool is_local_main_process() const { return local_rank() == 0; }
  bool is_last_process() const { return rank() == world() - 1; }

  // Returns when every process has called it. Throws Error where one does not come. Collective.
  virtual void wait_for_everyone(CallSite site = {}) = 0;

  // Calls function() on the process of that name only; on the others does nothing. Not collective.
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

  // Calls function() on every process, first on the main one (of each machine: the local form),
  // then, when it has returned or thrown there, on the others; returns what it returned here.
  //   auto data = accelerator.main_process_first([] { return load_or_download(); });
  // Collective; function itself calls nothing collective.
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
  // By the constructor of a class that knows it.
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
      let_others_go_if_thrown(function);
      wait_for_everyone();
    } else {
      std::optional<Result> result;
      let_others_go_if_thrown([&] { result.emplace(function()); });
      wait_for_everyone();
      return std::move(*result);
    }
  }

  template <class Function>
  void let_others_go_if_thrown(Function&& function) {
    try {
      function();
    } catch (...) {
      wait_for_everyone();
      throw;
    }
  }

  ProcessPlace place_;
};

}  // namespace coupler
