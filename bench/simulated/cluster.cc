#include "cluster.h"

#include <fmt/format.h>
#include <xbt/log.h>

#include <algorithm>
#include <stdexcept>

#include "common/error.h"
#include "rank.h"

namespace coupler::bench::simulated {
namespace {

namespace s4u = simgrid::s4u;
using db::hierarchical::Announcement;
using db::hierarchical::Layout;
using Direction = s4u::LinkInRoute::Direction;

std::unique_ptr<s4u::Engine> make_engine() {
  xbt_log_control_set("xbt_cfg.thresh:warning");  // not a line for each setting
  auto engine = std::make_unique<s4u::Engine>("coupler");
  for (const char* setting :
       {// Time is latency + bytes / rate, without factors for the TCP of other days. Flows share
        // links in inverse proportion to their latencies.
        "network/model:CM02", "network/TCP-gamma:0", "network/weight-S:0", "network/crosstraffic:0",
        // Messages take microseconds.
        "surf/precision:1e-10", "contexts/stack-size:256"})
    s4u::Engine::set_config(setting);
  return engine;
}

// Each machine's first ranks, then the next machine's.
Layout layout_of(const std::vector<int>& machines) {
  std::vector<Announcement> said;
  for (const int size : machines) {
    const auto first = static_cast<int32_t>(said.size());
    for (int i = 0; i < size; ++i) said.push_back({first, i, size, 0});
  }
  Layout layout;
  const db::Failure failure = Layout::make(said, 0, &layout);
  if (!failure.ok()) throw std::invalid_argument(failure.message);
  return layout;
}

}  // namespace

Cluster::Cluster(const Costs& costs, int machines, int ranks_each)
    : costs_(costs), engine_(make_engine()) {
  auto* const root = s4u::create_star_zone("network");
  for (int m = 0; m < machines; ++m) {
    const std::string name = fmt::format("machine{}", m);
    auto* const machine = s4u::create_star_zone(name);
    machine->set_parent(root);
    auto* const bus = machine->create_link(name + ".bus", costs.bus_rate)->set_latency(0.0);
    bus->seal();
    auto& hosts = hosts_.emplace_back();
    for (int i = 0; i < ranks_each; ++i) {
      const std::string rank = fmt::format("{}.{}", name, i);
      auto* const host = machine->create_host(rank, 1e9);
      auto* const link = machine->create_split_duplex_link(rank + ".link", costs.rank_rate);
      link->set_latency(costs.local_latency / 2);
      link->seal();
      host->seal();
      machine->add_route(host->get_netpoint(), nullptr, nullptr, nullptr, {{link, Direction::UP}},
                         true);
      machine->add_route(host->get_netpoint(), host->get_netpoint(), nullptr, nullptr,
                         {s4u::LinkInRoute(bus)}, true);
      hosts.push_back(host);
    }
    auto* const router = machine->create_router(name + ".router");
    machine->seal();
    auto* const interface = root->create_split_duplex_link(name + ".interface", costs.network_rate);
    interface->set_latency(std::max(0.0, costs.network_latency - costs.local_latency) / 2);
    interface->seal();
    interfaces_.push_back(interface);
    root->add_route(machine->get_netpoint(), nullptr, router, nullptr, {{interface, Direction::UP}},
                    true);
  }
  root->seal();
}

Cluster::~Cluster() = default;

void Cluster::set_network_rate(double rate) {
  costs_.network_rate = rate;
  for (auto* const interface : interfaces_) {
    interface->get_link_up()->set_bandwidth(rate);
    interface->get_link_down()->set_bandwidth(rate);
  }
}

size_t Cluster::simulated_machines(const Job& job, bool has_data) const {
  const std::vector<int>& sizes = job.machines;
  const size_t count = job.is_folded ? std::min<size_t>(2, sizes.size()) : sizes.size();
  if (count > hosts_.size())
    throw std::invalid_argument("the job has more machines than the cluster");
  if (std::any_of(sizes.begin(), sizes.end(), [](int size) { return size < 1; }))
    throw std::invalid_argument("the job has a machine without ranks");
  for (size_t m = 0; m < count; ++m) {
    if (static_cast<size_t>(sizes[m]) > hosts_[m].size())
      throw std::invalid_argument("the job has more ranks than a machine");
  }
  const bool is_equal =
      std::all_of(sizes.begin(), sizes.end(), [&](int size) { return size == sizes[0]; });
  if (job.is_folded && (!is_equal || has_data))
    throw std::invalid_argument("only jobs on equal machines and without data can be folded");
  return count;
}

Outcome Cluster::run(const Job& job, const Program& program, Data* data) {
  // Nothing may be refused once actors exist, which refer to what is local here.
  const size_t simulated = simulated_machines(job, data != nullptr);
  const Layout layout = layout_of(job.machines);
  Outcome outcome;
  std::string problem;
  std::vector<std::unique_ptr<Machine>> machines;
  std::vector<std::unique_ptr<Rank>> ranks;
  const double begin = s4u::Engine::get_clock();
  double end = begin;
  size_t ended = 0;
  for (size_t m = 0; m < simulated; ++m) {
    const auto& members = layout.machines[m];
    machines.push_back(std::make_unique<Machine>());
    Machine* const machine = machines.back().get();
    machine->barrier = s4u::Barrier::create(static_cast<unsigned>(members.size()));
    for (size_t i = 0; i < members.size(); ++i) {
      const auto number = static_cast<size_t>(members[i]);
      auto* const rank = ranks
                             .emplace_back(std::make_unique<Rank>(
                                 *this, job, layout, members[i], machine,
                                 data == nullptr ? nullptr : &(*data)[number], &outcome.repeats))
                             .get();
      machine->ranks.push_back(rank);
      s4u::Actor::create(fmt::format("rank{}", number), hosts_[m][i], [&, rank] {
        try {
          program(*rank);
        } catch (const std::logic_error&
                     error) {  // an error of the program; SimGrid's own exceptions pass through
          if (problem.empty()) problem = fmt::format("rank {}: {}", rank->rank(), error.what());
          s4u::Actor::kill_all();
        }
        end = std::max(end, s4u::Engine::get_clock());
        ++ended;
      });
    }
  }
  engine_->run();
  if (!problem.empty()) throw std::invalid_argument(problem);
  // SimGrid kills ranks that wait for each other, and goes on.
  if (ended < ranks.size()) throw std::logic_error("the program deadlocks");
  outcome.seconds = end - begin;
  return outcome;
}

double Cluster::extrapolate(Job job, uint64_t limit, const Program& program) {
  job.repeat_limit = limit;
  const Outcome few = run(job, program);
  if (few.repeats <= limit) return few.seconds;
  job.repeat_limit = 2 * limit;
  const Outcome more = run(job, program);
  if (more.repeats <= 2 * limit) return more.seconds;
  return more.seconds + (more.seconds - few.seconds) / static_cast<double>(limit) *
                            static_cast<double>(more.repeats - 2 * limit);
}

}  // namespace coupler::bench::simulated
