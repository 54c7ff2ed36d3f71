// launch: runs a function of the program on several processes, from code, like Accelerate's
// notebook_launcher and debug_launcher.
//
//   double train(int epochs) { coupler::Accelerator accelerator; …; return accuracy; }
//   const coupler::Launchable launchable_train("train", train);
//
//   int main(int argc, char** argv) {
//     coupler::enter_launched();               // launched processes run the function and exit here
//     double accuracy = coupler::launch(2, train, 20);  // rank 0's result
//   }
//
// Each rank is a separate process: this program, started again by `coupler launch`, because a
// process with LibTorch's threads cannot safely fork. It finds the function by its registered name.
// Arguments and results travel as data that cannot carry code: anything nlohmann::json converts
// (numbers, strings, vectors, maps, tuples, types with to_json and from_json), of at most
// kMaxObjectBytes. Only rank 0's result is returned.
//
// The calling thread waits until every rank has ended; Ctrl-C and the end of this process end them,
// too. [any-thread], including several launches at a time. Not part of coupler.h because it
// includes nlohmann/json.hpp.
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
  std::vector<std::string> overrides = {};  // "training.seed=7", as -o
  // The program that the ranks run. Empty: this program. Another program must register the function
  // and call enter_launched; for notebooks, whose kernel cannot be started again.
  std::string program = {};
};

namespace detail {

using LaunchedFunction = std::function<EncodedObject(const ObjectBytes& arguments)>;

void register_launchable(const std::string& name, void (*identity)(), LaunchedFunction function);
// Throws Error(kUsage) if the function is not registered.
std::string launchable_name(void (*identity)());
// Starts the ranks and waits for them; returns rank 0's result.
ObjectBytes run_launch(const LaunchOptions& options, const std::string& function,
                       const EncodedObject& arguments);

template <class Result>
Result launched_result(const LaunchOptions& options, const std::string& function,
                       const EncodedObject& arguments) {
  const ObjectBytes bytes = run_launch(options, function, arguments);
  if constexpr (!std::is_void_v<Result>) return decode_object<Result>("launch", 0, bytes);
}

}  // namespace detail

// Registers a function under a unique name. Define it at namespace scope, so that the function is
// registered before main starts. Parameters are taken by value or by const reference.
class Launchable {
 public:
  // Registers the function under `name`, which no other function may have.
  template <class Result, class... Parameters>
  Launchable(const std::string& name, Result (*function)(Parameters...)) {
    detail::register_launchable(
        name, reinterpret_cast<void (*)()>(function),
        [function](const detail::ObjectBytes& bytes) -> detail::EncodedObject {
          std::tuple<std::decay_t<Parameters>...> arguments;
          if constexpr (sizeof...(Parameters) > 0)  // an empty tuple is not a JSON array
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

// Call this first in main. In a process started by launch, it runs the function and exits the
// process; in any other it does nothing.
void enter_launched();

// Runs the function on options.processes processes and returns its result on rank 0. Throws the
// Error of the rank that failed first, with its rank; other exceptions become Error(kAborted) with
// their message, a killed rank Error(kPeerLost). Throws Error(kUsage) for a function that is not
// registered, inside a rank, and if main does not call enter_launched.
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

// Runs a function of options.program by name: launch<double>(options, "train", 20). Argument types
// are checked in the launched process: Error(kMismatch) if they do not match.
template <class Result = void, class... Arguments>
Result launch(const LaunchOptions& options, const std::string& function, Arguments&&... arguments) {
  const std::tuple<std::decay_t<Arguments>...> values(std::forward<Arguments>(arguments)...);
  return detail::launched_result<Result>(options, function, detail::encode_object(values));
}

}  // namespace coupler
