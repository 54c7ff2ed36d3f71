#include "attacked_job.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <stdexcept>

#include "shared.h"

namespace backend_test {
namespace {

constexpr size_t kMostRanks = 16;
constexpr size_t kKeptTexts = 4;
constexpr uint64_t kGathered = 1000;  // elements per rank

enum class End { kDied, kWell, kError, kWrong };
struct RankExit {
  End end = End::kDied;
  std::array<char, 600> text{};
};

void say(RankExit* end, End what, const std::string& text) {
  std::snprintf(end->text.data(), end->text.size(), "%s", text.c_str());
  end->end = what;
}

// Small integers, so that additions in any order give the same sum.
float contribution(int32_t rank, uint64_t i) {
  return static_cast<float>((rank + 1) * static_cast<int64_t>(i % 1000 + 1));
}

// False: it failed, and *end has the reason.
bool reduce(Rank& self, db_communicator* on, uint64_t count, int64_t timeout_ns, RankExit* end) {
  const int32_t rank = on->rank, size = on->size;
  std::vector<float> data(count);
  for (uint64_t i = 0; i < count; ++i) data[i] = contribution(rank, i);
  db_op op = all_reduce(data.data(), data.data(), count);
  op.timeout_ns = timeout_ns;
  const db_status status = self.run_on(on, op, true);
  if (status != DB_OK) {
    say(end, End::kError, "all_reduce: " + std::string(self.error.text.data()));
    return false;
  }
  const int32_t sum_of_ranks = size * (size + 1) / 2;
  for (uint64_t i = 0; i < count; ++i) {
    const float expected = contribution(sum_of_ranks - 1, i);
    if (data[i] == expected) continue;
    say(end, End::kWrong,
        "all_reduce of " + std::to_string(count) + ": element " + std::to_string(i) + " is " +
            std::to_string(data[i]) + ", not " + std::to_string(expected));
    return false;
  }
  return true;
}

// Like reduce, with an operation whose result shows which rank sent what.
bool gather(Rank& self, db_communicator* on, uint64_t count, int64_t timeout_ns, RankExit* end) {
  const auto size = static_cast<uint64_t>(on->size);
  std::vector<float> own(count), all(size * count);
  for (uint64_t i = 0; i < count; ++i) own[i] = contribution(on->rank, i);
  db_op op{};
  op.kind = DB_ALL_GATHER;
  op.dtype = DB_F32;
  op.send = own.data();
  op.recv = all.data();
  op.count = count;
  op.timeout_ns = timeout_ns;
  if (self.run_on(on, op, true) != DB_OK) {
    say(end, End::kError, "all_gather: " + std::string(self.error.text.data()));
    return false;
  }
  for (uint64_t i = 0; i < all.size(); ++i) {
    if (all[i] == contribution(static_cast<int32_t>(i / count), i % count)) continue;
    say(end, End::kWrong,
        "all_gather: the part of rank " + std::to_string(i / count) + " differs from what it sent");
    return false;
  }
  return true;
}

void work_in_rank(Rank& self, const Work& work, RankExit* end) {
  if (self.created != DB_OK) {
    return say(end, End::kError, "create: " + std::string(self.error.text.data()));
  }
  int32_t done = 0;
  for (const uint64_t count : work.counts) {
    if (!reduce(self, self.communicator, count, work.timeout_ns, end)) return;
    if (++done == work.armed_after && self.communicator->rank == 0) work.armed->store(1);
  }
  if (!gather(self, self.communicator, kGathered, work.timeout_ns, end)) return;
  if (work.splits) {
    db_communicator* child = nullptr;
    self.error.reset();
    if (self.functions->split(self.communicator, 0, self.communicator->rank, &child, self.error) !=
        DB_OK) {
      return say(end, End::kError, "split: " + std::string(self.error.text.data()));
    }
    const bool good = reduce(self, child, work.counts.front(), work.timeout_ns, end) &&
                      gather(self, child, kGathered, work.timeout_ns, end);
    child->functions->destroy(child);
    if (!good) return;
  }
  end->end = End::kWell;
}

}  // namespace

void Verdict::add(const Verdict& other) {
  jobs += other.jobs;
  well += other.well;
  ended += other.ended;
  wrong += other.wrong;
  longest_ms = std::max(longest_ms, other.longest_ms);
  for (const std::string& text : other.texts) {
    if (texts.size() < kKeptTexts) texts.push_back(text);
  }
}

std::string Verdict::describe() const {
  std::string text = std::to_string(jobs) + " jobs: " + std::to_string(well) + " ended well, " +
                     std::to_string(ended) + " with an error, " + std::to_string(wrong) +
                     " with a wrong result; the longest took " + std::to_string(longest_ms) + " ms";
  for (const std::string& one : texts) text += "\n  " + one;
  return text;
}

Job placed_job(int32_t size, const std::vector<const Network*>& networks,
               const std::string& interface_name) {
  const auto machines = static_cast<int32_t>(networks.size());
  const int32_t each = size / machines;
  if (each * machines != size)
    throw std::invalid_argument("the ranks cannot be divided evenly among the machines");
  Job job;
  job.size = size;
  job.must_connect = false;
  for (int32_t rank = 0; rank < size; ++rank) {
    job.places.push_back({.network = networks[static_cast<size_t>(rank / each)]->descriptor(),
                          .interface_name = machines > 1 ? interface_name : "",
                          .local_rank = rank % each,
                          .local_size = each});
  }
  return job;
}

Verdict run_attacked(const Job& job, const Work& work) {
  const Shared<std::array<RankExit, kMostRanks>> ends;
  const auto began = std::chrono::steady_clock::now();
  fork_ranks(job, [&](int32_t rank, Rank& self) {
    work_in_rank(self, work, &(*ends)[static_cast<size_t>(rank)]);
  });
  Verdict verdict;
  verdict.jobs = 1;
  bool wrong = false, ended = false;
  for (int32_t rank = 0; rank < job.size; ++rank) {
    const RankExit& end = (*ends)[static_cast<size_t>(rank)];
    wrong |= end.end == End::kWrong;
    ended |= end.end == End::kError || end.end == End::kDied;
    if (end.end == End::kWell) continue;
    const std::string text = end.end == End::kDied ? "died" : end.text.data();
    verdict.add({.texts = {"rank " + std::to_string(rank) + " of " + std::to_string(job.size) +
                           ": " + text}});
  }
  verdict.longest_ms = milliseconds_since(began);
  ++(wrong ? verdict.wrong : ended ? verdict.ended : verdict.well);
  return verdict;
}

}  // namespace backend_test
