// Checks the processes' ranks, and code that only some of them run.
#include <ATen/Functions.h>
#include <coupler/objects.h>
#include <coupler/processes.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <map>

#include "section.h"

namespace coupler::self_test {
namespace {

at::Tensor one(int64_t value) { return at::full({1}, value, at::kLong); }

std::string machine() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

// Nanoseconds of a clock that the processes of one machine share.
int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// How many ranks ran the function they were given.
template <class Run>
int64_t ran_on(Accelerator& accelerator, const Run& run) {
  int64_t mine = 0;
  run([&mine] { mine = 1; });
  return accelerator.reduce(one(mine)).item<int64_t>();
}

template <class T>
bool joins_to(Accelerator& accelerator, const std::vector<T>& part, const std::vector<T>& whole) {
  std::vector<T> joined;
  for (const std::vector<T>& of_rank : gather_object(accelerator, part)) {
    joined.insert(joined.end(), of_rank.begin(), of_rank.end());
  }
  return joined == whole;
}

}  // namespace

bool same_everywhere(Accelerator& accelerator, const at::Tensor& tensor) {
  return at::equal(accelerator.broadcast(tensor), tensor);
}

void initialization(Accelerator& accelerator, Findings& findings) {
  const int64_t world_size = accelerator.world_size();
  accelerator.wait_for_everyone();
  findings.expect(at::equal(accelerator.gather(one(accelerator.rank())), at::arange(world_size)),
                  "the ranks are not 0 to world - 1, each once");
  // The processes of one machine have local ranks from 0, each once.
  const auto machines = gather_object(accelerator, machine());
  const auto locals = gather_object(accelerator, accelerator.local_rank());
  std::map<std::string, std::vector<int>> places;
  for (size_t rank = 0; rank < machines.size(); ++rank) {
    auto& seen = places[machines[rank]];
    findings.expect(locals[rank] == static_cast<int>(seen.size()),
                    "rank " + std::to_string(rank) + " is local rank " +
                        std::to_string(locals[rank]) + " of " + machines[rank] + ", not " +
                        std::to_string(seen.size()));
    seen.push_back(locals[rank]);
  }
  findings.expect(accelerator.local_world_size() == static_cast<int>(places[machine()].size()),
                  "local_world_size is " + std::to_string(accelerator.local_world_size()) +
                      ", but " + std::to_string(places[machine()].size()) + " processes are on " +
                      machine());
}

void process_execution(Accelerator& accelerator, Findings& findings) {
  const int world_size = accelerator.world_size();
  findings.expect(ran_on(accelerator, [&](auto f) { accelerator.on_main_process(f); }) == 1,
                  "on_main_process did not run once");
  findings.expect(ran_on(accelerator, [&](auto f) { accelerator.on_last_process(f); }) == 1,
                  "on_last_process did not run once");
  for (int rank = 0; rank < world_size; ++rank) {
    findings.expect(ran_on(accelerator, [&](auto f) { accelerator.on_process(rank, f); }) == 1,
                    "on_process(" + std::to_string(rank) + ") did not run once");
  }
  std::pair<int64_t, int64_t> mine;  // when it began and ended
  accelerator.local_main_process_first([&] {
    mine.first = now();
    mine.second = now();
  });
  const auto times = gather_object(accelerator, mine);
  const auto machines = gather_object(accelerator, machine());
  const auto locals = gather_object(accelerator, accelerator.local_rank());
  for (size_t rank = 0; rank < times.size(); ++rank) {
    const bool main_of_mine = machines[rank] == machine() && locals[rank] == 0;
    findings.expect(
        !main_of_mine || accelerator.is_local_main_process() || times[rank].second <= mine.first,
        "local_main_process_first ran here before the local main process had finished");
  }
}

void random_numbers(Accelerator& accelerator, Findings& findings) {
  set_seed(42);
  findings.expect(same_everywhere(accelerator, at::rand({16})),
                  "set_seed gives different numbers than on rank 0");
  set_seed(42, {.device_specific = true});
  const at::Tensor all = accelerator.gather(at::rand({1, 16}));
  for (int rank = 0; rank < accelerator.world_size(); ++rank) {
    findings.expect(
        rank == accelerator.rank() || !at::equal(all[rank], all[accelerator.rank()]),
        "device_specific seeds give the same numbers as on rank " + std::to_string(rank));
  }
  accelerator.synchronize_random_state();
  findings.expect(same_everywhere(accelerator, at::rand({16})),
                  "after synchronize_random_state the numbers are not rank 0's");
}

namespace {

// Tensors in host memory and on the device may take different ways.
void collectives_on(c10::Device device, Accelerator& accelerator, Findings& findings) {
  const int64_t world_size = accelerator.world_size(), rank = accelerator.rank();
  // Sizes on both sides of the limits at which transports switch algorithms.
  for (const int64_t size : {int64_t{1}, int64_t{1000}, int64_t{1} << 18}) {
    const std::string what =
        " of " + std::to_string(size) + " numbers on " + device.str() + " is wrong";
    const at::Tensor mine = (at::arange(size, at::kFloat) + static_cast<double>(rank)).to(device);
    const at::Tensor sum = at::arange(size, at::kFloat) * world_size +
                           static_cast<double>(world_size * (world_size - 1) / 2);
    findings.expect(at::allclose(accelerator.reduce(mine).cpu(), sum), "the sum" + what);
    findings.expect(at::allclose(accelerator.reduce(mine, ReduceOp::kMean).cpu(), sum / world_size),
                    "the mean" + what);
    const at::Tensor gathered = accelerator.gather(mine).cpu().view({world_size, size});
    findings.expect(at::equal(gathered.narrow(1, 0, 1).view({world_size}),
                              at::arange(world_size, at::kFloat)) &&
                        at::equal(gathered[rank], mine.cpu()),
                    "the gather" + what);
    findings.expect(at::equal(accelerator.broadcast(mine, static_cast<int>(world_size) - 1).cpu(),
                              at::arange(size, at::kFloat) + static_cast<double>(world_size - 1)),
                    "the broadcast" + what);
  }
}

}  // namespace

void collectives(Accelerator& accelerator, Findings& findings) {
  const int64_t world_size = accelerator.world_size(), rank = accelerator.rank();
  collectives_on(at::kCPU, accelerator, findings);
  if (!accelerator.device().is_cpu()) collectives_on(accelerator.device(), accelerator, findings);
  const at::Tensor padded = accelerator.pad_across_processes(at::ones({rank + 1}));
  findings.expect(padded.size(0) == world_size && padded.sum().item<double>() == double(rank + 1),
                  "pad_across_processes does not pad with zeros");
}

void split_between_processes(Accelerator& accelerator, Findings& findings) {
  for (const int count : {0, 1, accelerator.world_size(), 2 * accelerator.world_size() + 1}) {
    std::vector<int> whole;
    for (int i = 0; i < count; ++i) whole.push_back(i * i);
    const std::string of = " of " + std::to_string(count);
    findings.expect(joins_to(accelerator, accelerator.split_between_processes(whole), whole),
                    "the parts of a list" + of + " do not add up to the list");
    const std::map<std::string, std::vector<int>> named = {{"x", whole}, {"y", whole}};
    const auto part = accelerator.split_between_processes(named);
    findings.expect(part.at("x") == part.at("y") && joins_to(accelerator, part.at("x"), whole),
                    "the parts of a map of lists" + of + " do not add up to the map");
    if (count == 0) continue;
    const auto padded = accelerator.split_between_processes(at::arange(count), true);
    const int64_t longest = (count + accelerator.world_size() - 1) / accelerator.world_size();
    findings.expect(padded.size(0) == longest,
                    "padded parts of a tensor" + of + " differ in length");
  }
}

void trigger(Accelerator& accelerator, Findings& findings) {
  findings.expect(!accelerator.check_trigger(), "the trigger is set before any rank set it");
  accelerator.on_last_process([&] { accelerator.set_trigger(); });
  findings.expect(accelerator.check_trigger(), "the last rank's trigger was not seen");
  findings.expect(!accelerator.check_trigger(), "the trigger is still set after a check");
}

}  // namespace coupler::self_test
