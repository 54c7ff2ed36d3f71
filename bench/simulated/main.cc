// Times of collectives and sharded steps on simulated machines: bench_simulated [options]. Prints a
// line of JSON for each schedule, number of machines, rate and size.
//   --schedules NAME,…      ring, halving-doubling, direct, hierarchical/ring and so on
//   --machines N,…          of --each ranks (default 8)
//   --gbit RATE,…           of a machine's network interface, in Gbit/s
//   --bytes N,…             an all_reduce of each size; default 1048576
//   --step UNITS,BYTES,MS   instead: a sharded step of so many units of so many bytes, whose
//   forward computes MS each
//   --complete              simulates every machine and every repetition
//   --small BYTES           up to which hierarchical has one lane; --latency MICROSECONDS between
//   machines
//   --rank-rate BYTES       a second, of all messages of a rank in each direction
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "cluster.h"
#include "rank.h"
#include "schedules.h"

namespace coupler::bench::simulated {
namespace {

constexpr uint64_t kSteady = 4;  // repetitions after which the next ones take as long as each other

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

std::vector<double> numbers(const std::string& option, const std::string& text) {
  std::vector<double> found;
  for (const std::string& word : split(text)) {
    size_t used = 0;
    try {
      found.push_back(std::stod(word, &used));
    } catch (const std::logic_error&) {
      used = 0;
    }
    if (used != word.size() || word.empty() || found.back() < 0)
      throw std::invalid_argument(option + ": '" + word + "' is not a number of 0 or more");
  }
  return found;
}

struct Options {
  std::map<std::string, std::string> given{
      {"--schedules", "ring,halving-doubling,direct,hierarchical/direct"},
      {"--machines", "2"},
      {"--each", "8"},
      {"--gbit", "10"},
      {"--bytes", "1048576"},
      {"--step", ""},
      {"--small", "32768"},
      {"--latency", "15"},
      {"--rank-rate", "3.66e9"}};
  bool is_complete = false;

  Options(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      const std::string name = argv[i];
      if (name == "--complete") {
        is_complete = true;
      } else if (given.count(name) == 0) {
        throw std::invalid_argument("unknown option '" + name +
                                    "'; bench/simulated/main.cc lists them");
      } else if (i + 1 == argc) {
        throw std::invalid_argument(name + " needs a value");
      } else {
        given[name] = argv[++i];
      }
    }
  }
  std::vector<double> all(const std::string& name) const { return numbers(name, given.at(name)); }
  double one(const std::string& name) const { return all(name).at(0); }
};

class Bench {
 public:
  Bench(const Options& options, Cluster& cluster) : options_(options), cluster_(cluster) {}

  void measure(const std::string& schedule, int machines, double gbit) {
    cluster_.set_network_rate(gbit * 1e9 / 8);
    const Job job{.machines = std::vector<int>(static_cast<size_t>(machines),
                                               static_cast<int>(options_.one("--each"))),
                  .is_folded = !options_.is_complete};
    const std::string where =
        fmt::format(R"("schedule": "{}", "machines": {}, "ranks": {}, "gbit": {})", schedule,
                    machines, machines * job.machines[0], gbit);
    if (!options_.given.at("--step").empty()) {
      const auto given = options_.all("--step");
      if (given.size() != 3)
        throw std::invalid_argument("--step needs units, bytes of one, and milliseconds");
      const ShardedStep step{static_cast<uint64_t>(given[0]), static_cast<uint64_t>(given[1]),
                             given[2] / 1e3, schedule};
      print(where,
            fmt::format(R"("units": {}, "unit_bytes": {}, "forward_ms": {})", step.units,
                        step.unit_bytes, given[2]),
            job, [step](Rank& rank) { run_sharded_step(rank, step); });
      return;
    }
    for (const double bytes : options_.all("--bytes"))
      print(where, fmt::format(R"("bytes": {})", bytes), job, [this, bytes, schedule](Rank& rank) {
        make(schedule, rank)->all_reduce({0, static_cast<uint64_t>(bytes) / kElementBytes});
      });
  }

 private:
  std::unique_ptr<Schedule> make(const std::string& schedule, Rank& rank) const {
    const std::string prefix = "hierarchical/";
    if (!schedule.starts_with(prefix)) return make_schedule(schedule, rank);
    return std::make_unique<Hierarchical>(
        rank,
        Hierarchical::Settings{.across = schedule.substr(prefix.size()),
                               .small_bytes = static_cast<uint64_t>(options_.one("--small"))});
  }

  void print(const std::string& where, const std::string& what, const Job& job,
             const Program& program) {
    const auto begin = std::chrono::steady_clock::now();
    const double seconds = options_.is_complete ? cluster_.run(job, program).seconds
                                                : cluster_.extrapolate(job, kSteady, program);
    const std::chrono::duration<double> used = std::chrono::steady_clock::now() - begin;
    fmt::print("{{{}, {}, \"seconds\": {:.9g}, \"complete\": {}, \"simulated_in\": {:.3g}}}\n",
               where, what, seconds, options_.is_complete, used.count());
    std::fflush(stdout);
  }

  const Options& options_;
  Cluster& cluster_;
};

void run(const Options& options) {
  for (const std::string name : {"--machines", "--each"}) {
    for (const double count : options.all(name))
      if (count < 1) throw std::invalid_argument(name + " must be at least 1");
  }
  const auto machines = options.all("--machines");
  const double most = *std::max_element(machines.begin(), machines.end());
  const int simulated =
      options.is_complete ? static_cast<int>(most) : std::min(2, static_cast<int>(most));
  Costs costs;
  costs.network_latency = options.one("--latency") / 1e6;
  costs.rank_rate = options.one("--rank-rate");
  Cluster cluster(costs, simulated, static_cast<int>(options.one("--each")));
  Bench bench(options, cluster);
  for (const double count : machines)
    for (const double gbit : options.all("--gbit"))
      for (const std::string& schedule : split(options.given.at("--schedules")))
        bench.measure(schedule, static_cast<int>(count), gbit);
}

}  // namespace
}  // namespace coupler::bench::simulated

int main(int argc, char** argv) {
  try {
    coupler::bench::simulated::run({argc, argv});
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_simulated: {}\n", error.what());
    return 2;
  }
  return 0;
}
