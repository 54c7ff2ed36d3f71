// launch: a function of the program run on several processes, from code, as Accelerate's
// notebook_launcher and debug_launcher do.
//
//   double train(int epochs) { coupler::Accelerator accelerator; …; return accuracy; }
//   const coupler::Launchable launchable_train("train", train);
//
//   int main(int argc, char** argv) {
//     coupler::enter_launched();               // a process of a launch goes in here and ends
//     double accuracy = coupler::launch(2, train, 20);  // of rank 0
//   }
//
// Each rank is a process of its own: this program, started anew by `coupler launch`, since a
// process in which LibTorch's threads run cannot be divided by fork. It finds the function by the
// name under which it is registered. Arguments and results travel as data that cannot carry code:
// anything nlohmann::json converts (numbers, strings, vectors, maps, tuples, types with to_json and
// from_json), of at most kMaxObjectBytes; results of rank 0 alone.
//
// The thread that calls launch waits until every rank has ended; Ctrl-C and the end of this process
// end them, too. [any-thread], several launches at a time included. Not part of coupler.h, for it
// brings nlohmann/json.hpp.
#pragma once

#include <coupler/objects.h>

#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace coupler {

// For launch.
struct LaunchOptions {
  int processes = 1;                        // at least 1
  std::string config = {};                  // a TOML file, as --config of `coupler launch`
  std::vector<std::string> overrides = {};  // "backend.use=gloo_cpu", as -o
  // What the ranks run. Empty: this program. Another one has the function registered, and calls
  // enter_launched: from a notebook, whose kernel cannot be started anew.
  std::string program = {};
};

namespace detail {

using LaunchedFunction = std::function<EncodedObject(const ObjectBytes& arguments)>;

void register_launchable(const std::string& name, void (*identity)(), LaunchedFunction function);
// Throws Error(kUsage) where it is not registered.
std::string launchable_name(void (*identity)());
// Starts the ranks and waits for them; rank 0's result.
ObjectBytes run_launch(const LaunchOptions& options, const std::string& function,
                       const EncodedObject& arguments);

template <class Result>
Result launched_result(const LaunchOptions& options, const std::string& function,
                       const EncodedObject& arguments) {
  const ObjectBytes bytes = run_launch(options, function, arguments);
  if constexpr (!std::is_void_v<Result>) return decode_object<Result>("launch", 0, bytes);
}

}  // namespace detail

// Registers a function under a name of its own; at namespace scope, so that it is there before main
// begins. Parameters are taken by value or by const reference.
class Launchable {
 public:
  // Registers the function in every process of the program, as a constant of a namespace. name: no
  // other function's.
  template <class Result, class... Parameters>
  Launchable(const std::string& name, Result (*function)(Parameters...)) {
    detail::register_launchable(
        name, reinterpret_cast<void (*)()>(function),
        [function](const detail::ObjectBytes& bytes) -> detail::EncodedObject {
          std::tuple<std::decay_t<Parameters>...> arguments;
          if constexpr (sizeof...(Parameters) > 0)  // an empty tuple is no array
            arguments = detail::decode_object<decltype(arguments)>("launch", 0, bytes);
          if constexpr (std::is_void_v<Result>) {
            std::apply(function, std::move(arguments));
            return {};
          } else {
            return detail::encode_object(std::apply(function, std::move(arguments)));
          }
        });
  }
};

// To be called first in main. In a process that launch has started it runs the function and ends
// the process; in any other it does nothing.
void enter_launched();

// Runs the function on options.processes processes and returns what it returned on rank 0. Throws
// the Error of the rank that failed first, with its rank (another exception as Error(kAborted) with
// its text; a rank that was killed as Error(kPeerLost)); Error(kUsage) for a function that is not
// registered, within a rank, and where main does not call enter_launched.
template <class Result, class... Parameters, class... Arguments>
Result launch(const LaunchOptions& options, Result (*function)(Parameters...),
              Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments),
                "launch takes one argument for each parameter of the function");
  const std::tuple<std::decay_t<Parameters>...> values(std::forward<Arguments>(arguments)...);
  return detail::launched_result<std::decay_t<Result>>(
      options, detail::launchable_name(reinterpret_cast<void (*)()>(function)),
      detail::encode_object(values));
}
template <class Result, class... Parameters, class... Arguments>
Result launch(int processes, Result (*function)(Parameters...), Arguments&&... arguments) {
  return launch(LaunchOptions{.processes = processes}, function,
                std::forward<Arguments>(arguments)...);
}

// By name, of a function of options.program: launch<double>(options, "train", 20). What types it
// takes is seen there: Error(kMismatch) where the arguments are others.
template <class Result = void, class... Arguments>
Result launch(const LaunchOptions& options, const std::string& function, Arguments&&... arguments) {
  const std::tuple<std::decay_t<Arguments>...> values(std::forward<Arguments>(arguments)...);
  return detail::launched_result<Result>(options, function, detail::encode_object(values));
}

}  // namespace coupler
