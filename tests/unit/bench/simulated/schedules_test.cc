// The schedules of bench/simulated: whether they compute sums, on messages that carry data, and
// whether their simulated times are those of formulas.
#include "schedules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cluster.h"
#include "rank.h"

namespace coupler::bench::simulated {
namespace {

using Machines = std::vector<int>;
using Make = std::function<std::unique_ptr<Schedule>(Rank&)>;

// SimGrid has one engine in a process.
Cluster& cluster() {
  static auto* const made = new Cluster(Costs(), 16, 16);
  return *made;
}

constexpr uint64_t kCount = 101;  // elements, divided evenly by nothing

// Circulant rounds for any number of ranks, and nothing is small.
constexpr Direct::Limits kCirculant{
    .exchange_bytes = 0, .pair_exchange_bytes = 0, .halving_ranks = 2};

// With limits so small that the data has several chunks and slices, and with those of the backends,
// under which all of it is small.
std::map<std::string, Make> schedules() {
  std::map<std::string, Make> made;
  for (const std::string name : {"ring", "halving-doubling", "direct"}) {
    made[name] = [name](Rank& rank) { return make_schedule(name, rank); };
    made["hierarchical/" + name] = [name](Rank& rank) {
      return make_schedule("hierarchical/" + name, rank);
    };
    made["hierarchical in chunks/" + name] = [name](Rank& rank) {
      return std::make_unique<Hierarchical>(
          rank, Hierarchical::Settings{
                    .across = name, .chunk_bytes = 22 * kElementBytes, .small_bytes = 8});
    };
  }
  const auto direct = [&](const std::string& name, const Direct::Limits& limits) {
    made[name] = [limits](Rank& rank) {
      return std::make_unique<Direct>(rank, all_ranks(rank), limits);
    };
  };
  direct("direct in slices",
         {.exchange_bytes = 8, .pair_exchange_bytes = 8, .slice_bytes = 22 * kElementBytes});
  direct("direct in circulant rounds", kCirculant);
  direct("direct in circulant rounds, small", {.halving_ranks = 2});
  direct("direct between all", {.halving_ranks = 1000});
  return made;
}

const std::vector<Machines>& layouts() {
  static const std::vector<Machines> all{{1},
                                         {2},
                                         {1, 1},
                                         {3},
                                         {2, 1},
                                         {5},
                                         {2, 3},
                                         {8},
                                         {4, 4},
                                         {1, 3, 2, 2},
                                         {4, 4, 4},
                                         {5, 4, 3},
                                         {16},
                                         {8, 8},
                                         {4, 4, 4, 4},
                                         {2, 2, 2, 2, 2, 2},
                                         {1, 1, 1, 1, 1},
                                         {7, 5, 4}};
  return all;
}

int ranks_of(const Machines& machines) {
  int all = 0;
  for (const int size : machines) all += size;
  return all;
}

// Whole numbers, so that sums are exact.
double value(int rank, uint64_t i) { return rank * 1000.0 + static_cast<double>(i); }

double sum(int ranks, uint64_t i) {
  double all = 0;
  for (int rank = 0; rank < ranks; ++rank) all += value(rank, i);
  return all;
}

Data make_data(int ranks) {
  Data data(static_cast<size_t>(ranks), std::vector<double>(kCount));
  for (int rank = 0; rank < ranks; ++rank)
    for (uint64_t i = 0; i < kCount; ++i) data[static_cast<size_t>(rank)][i] = value(rank, i);
  return data;
}

// Calls check(name, machines, schedule's maker) for each schedule and layout.
template <class Check>
void each(const Check& check) {
  for (const auto& [name, make] : schedules())
    for (const Machines& machines : layouts())
      check(fmt::format("{} on {}", name, machines), machines, make);
}

TEST(SimulatedSchedules, AllReduce_DeliversTheSum) {
  each([](const std::string& what, const Machines& machines, const Make& make) {
    const int ranks = ranks_of(machines);
    Data data = make_data(ranks);
    cluster().run(
        {machines},
        [&](Rank& rank) {
          make(rank)->all_reduce({0, kCount});
        },
        &data);
    for (int rank = 0; rank < ranks; ++rank)
      for (uint64_t i = 0; i < kCount; ++i)
        ASSERT_EQ(data[static_cast<size_t>(rank)][i], sum(ranks, i))
            << what << ", rank " << rank << ", " << i;
  });
}

TEST(SimulatedSchedules, AllReduceOfAPart_LeavesTheRest) {
  each([](const std::string& what, const Machines& machines, const Make& make) {
    const int ranks = ranks_of(machines);
    Data data = make_data(ranks);
    cluster().run(
        {machines},
        [&](Rank& rank) {
          make(rank)->all_reduce({7, 50});
        },
        &data);
    for (const uint64_t i : {6U, 57U}) ASSERT_EQ(data[0][i], value(0, i)) << what;
    for (const uint64_t i : {7U, 56U}) ASSERT_EQ(data[0][i], sum(ranks, i)) << what;
  });
}

TEST(SimulatedSchedules, ReduceScatterThenAllGather_IsAllReduce) {
  each([](const std::string& what, const Machines& machines, const Make& make) {
    const int ranks = ranks_of(machines);
    const auto parts = even_parts({0, kCount}, ranks);
    Data data = make_data(ranks);
    cluster().run(
        {machines}, [&](Rank& rank) { make(rank)->reduce_scatter(parts); }, &data);
    for (int rank = 0; rank < ranks; ++rank) {
      const Block own = parts[static_cast<size_t>(rank)][0];
      for (uint64_t i = 0; i < kCount; ++i) {
        double& element = data[static_cast<size_t>(rank)][i];
        if (i >= own.begin && i < own.begin + own.count) {
          ASSERT_EQ(element, sum(ranks, i)) << what << ", rank " << rank << ", " << i;
        } else {
          element = -1;
        }
      }
    }
    cluster().run(
        {machines}, [&](Rank& rank) { make(rank)->all_gather(parts); }, &data);
    for (int rank = 0; rank < ranks; ++rank)
      for (uint64_t i = 0; i < kCount; ++i)
        ASSERT_EQ(data[static_cast<size_t>(rank)][i], sum(ranks, i))
            << what << ", rank " << rank << ", " << i;
  });
}

// Of one machine, and of machines with one rank each.
TEST(SimulatedTimes, Ring_AsTheFormula) {
  const Costs& costs = cluster().costs();
  cluster().set_network_rate(1.25e9);
  for (const int ranks : {2, 5, 16}) {
    for (const uint64_t elements : {1ULL, 1000ULL, 1000000ULL}) {
      const Block block{0, elements * static_cast<uint64_t>(ranks)};
      const auto formula = [&](double latency, double rate) {
        const double bytes = static_cast<double>(elements * kElementBytes + costs.header_bytes);
        return 2 * (ranks - 1) * (2 * costs.message_overhead + latency + bytes / rate);
      };
      const auto time = [&](const Machines& machines) {
        return cluster()
            .run({machines}, [&](Rank& rank) { make_schedule("ring", rank)->all_reduce(block); })
            .seconds;
      };
      const double within = formula(costs.local_latency, costs.rank_rate);
      EXPECT_NEAR(time({ranks}), within, 0.01 * within) << ranks << " ranks, " << elements;
      const double across = formula(costs.network_latency, 1.25e9);
      EXPECT_NEAR(time(Machines(static_cast<size_t>(ranks), 1)), across, 0.01 * across)
          << ranks << ", " << elements;
    }
  }
}

// Of machines with one rank each: a logarithmic number of rounds, and as many bytes as in a ring.
TEST(SimulatedTimes, CirculantRounds_AsTheFormula) {
  const Costs& costs = cluster().costs();
  cluster().set_network_rate(1.25e9);
  for (const auto& [ranks, rounds] : {std::pair(2, 1), std::pair(5, 3), std::pair(16, 4)}) {
    for (const uint64_t elements : {1ULL, 1000ULL, 1000000ULL}) {
      const Block block{0, elements * static_cast<uint64_t>(ranks)};
      const double message = 2 * costs.message_overhead + costs.network_latency +
                             static_cast<double>(costs.header_bytes) / 1.25e9;
      const double part = static_cast<double>(elements * kElementBytes) / 1.25e9;
      const double expected = 2 * (rounds * message + (ranks - 1) * part);
      const double time =
          cluster()
              .run({Machines(static_cast<size_t>(ranks), 1)},
                   [&](Rank& rank) { Direct(rank, all_ranks(rank), kCirculant).all_reduce(block); })
              .seconds;
      EXPECT_NEAR(time, expected, 0.01 * expected) << ranks << " ranks, " << elements;
    }
  }
}

// Shared memory: 8 ranks read all, and write the sums.
TEST(SimulatedTimes, OneMachine_IsLimitedByItsBus) {
  const Costs& costs = cluster().costs();
  const uint64_t bytes = 4 << 20;
  const double time =
      cluster()
          .run({{8}},
               [&](Rank& rank) {
                 make_schedule("hierarchical/ring", rank)->all_reduce({0, bytes / 4});
               })
          .seconds;
  const double expected =
      8 * 2.0 * static_cast<double>(bytes) / costs.bus_rate + 2 * 7 * costs.synchronization;
  EXPECT_NEAR(time, expected, 0.01 * expected);
}

// Two machines stand for all.
TEST(SimulatedTimes, Folded_AsComplete) {
  for (const auto& [name, make] : schedules()) {
    for (const uint64_t bytes : {1ULL << 12, 1ULL << 22}) {
      for (const double rate : {1.25e9, 12.5e9}) {
        cluster().set_network_rate(rate);
        if (name.find("in ") != std::string::npos) continue;  // the same with limits for small data
        Job job{.machines = Machines(8, 4)};
        const auto program = [&, &made = make](Rank& rank) {
          made(rank)->all_reduce({0, bytes / kElementBytes});
        };
        const double complete = cluster().run(job, program).seconds;
        job.is_folded = true;
        // Of messages that share some links, but not all, folding changes who gets how much.
        const double allowed = name == "direct between all" ? 0.06 : 1e-6;
        EXPECT_NEAR(cluster().run(job, program).seconds, complete, allowed * complete)
            << name << ", " << bytes;
      }
    }
  }
}

TEST(SimulatedTimes, Extrapolated_AsComplete) {
  cluster().set_network_rate(1.25e9);
  const Job job{Machines(4, 4)};
  const auto check = [&](const std::string& what, const Program& program) {
    const double complete = cluster().run(job, program).seconds;
    EXPECT_NEAR(cluster().extrapolate(job, 4, program), complete, 0.005 * complete) << what;
  };
  for (const std::string name :
       {"ring", "halving-doubling", "direct", "hierarchical/ring", "hierarchical/direct"}) {
    check(name, [&](Rank& rank) { make_schedule(name, rank)->all_reduce({0, 16 << 20}); });
    const ShardedStep step{
        .units = 20, .unit_bytes = 1 << 20, .forward_seconds = 1e-3, .schedule = name};
    check("step over " + name, [&](Rank& rank) { run_sharded_step(rank, step); });
  }
}

// While chunks are across, others are in memory: less than one after the other, and no less than
// the network needs.
TEST(SimulatedTimes, HierarchicalChunks_Overlap) {
  cluster().set_network_rate(12.5e9);
  const Machines machines(2, 8);
  const auto time = [&](uint64_t bytes) {
    return cluster()
        .run({machines},
             [&](Rank& rank) {
               make_schedule("hierarchical/ring", rank)->all_reduce({0, bytes / 4});
             })
        .seconds;
  };
  const double whole = 64 << 20, network = whole / 12.5e9;
  const double memory = 8 * 2 * whole / cluster().costs().bus_rate;
  EXPECT_GT(time(64 << 20), std::max(network, memory));
  EXPECT_LT(time(64 << 20), 0.9 * (network + memory));
}

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(SimulatedSchedules, JobsThatCannotBe_AreRefused) {
  const Program nothing = [](Rank&) {};
  Data data = make_data(2);
  const auto refused = [&](const Job& job, Data* of = nullptr) {
    return refusal([&] { cluster().run(job, nothing, of); });
  };
  EXPECT_EQ(refused({Machines(17, 1)}), "the job has more machines than the cluster");
  EXPECT_EQ(refused({{17}}), "the job has more ranks than a machine");
  EXPECT_EQ(refused({{1, 17}}), "the job has more ranks than a machine");
  EXPECT_EQ(refused({{1, 0}}), "the job has a machine without ranks");
  const std::string folded = "only jobs on equal machines and without data can be folded";
  EXPECT_EQ(refused({{1, 2}, true}), folded);
  EXPECT_EQ(refused({{1, 1}, true}, &data), folded);
  EXPECT_EQ(refusal([&] {
              cluster().run({Machines(3, 1), true},
                            [](Rank& rank) { make_schedule("halving-doubling", rank); });
            }),
            "rank 0: halving-doubling can only be folded if the number of ranks is a power of two");
  EXPECT_EQ(refusal([&] { cluster().run({{2}}, [](Rank& rank) { make_schedule("star", rank); }); }),
            "rank 0: there is no schedule 'star'; there are ring, halving-doubling and direct, "
            "each also after "
            "\"hierarchical/\"");
}

}  // namespace
}  // namespace coupler::bench::simulated
