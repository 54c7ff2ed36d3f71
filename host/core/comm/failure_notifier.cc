#include "comm/failure_notifier.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <thread>

#include "base/process.h"

namespace coupler::comm {
namespace {

constexpr const char* kErrorKey = "notice/mark";

std::string encode_error(const SharedError& shared_error) {
  return fmt::format("{} {} {} {}", shared_error.code, shared_error.reporter,
                     shared_error.failed_rank, shared_error.text);
}

std::optional<SharedError> decode_error(const std::string& text) {
  std::istringstream words(text);
  SharedError shared_error;
  if (!(words >> shared_error.code >> shared_error.reporter >> shared_error.failed_rank))
    return std::nullopt;
  words.get();
  std::getline(words, shared_error.text, '\0');
  return shared_error;
}

}  // namespace

SharedError FailureNotifier::publish(const SharedError& shared_error) {
  if (recorder_ != nullptr) {
    if (recorder_->set_shared_error(shared_error)) return shared_error;
    return recorder_->shared_error().value_or(shared_error);
  }
  // Through the store: the first to count is the first to write. Any other rank reads the error if
  // it is there, and otherwise keeps its own, which is just as true.
  if (store_->add(kErrorKey, 1) == 1) {
    store_->set(kErrorKey, encode_error(shared_error));
    return shared_error;
  }
  return this->shared_error().value_or(shared_error);
}

std::optional<SharedError> FailureNotifier::shared_error() const {
  if (recorder_ != nullptr) return recorder_->shared_error();
  const auto text = store_->get(kErrorKey, std::chrono::nanoseconds(0));
  return text ? decode_error(*text) : std::nullopt;
}

Progress FailureNotifier::progress(int rank) const {
  if (recorder_ != nullptr) return recorder_->progress(rank);
  Progress last;
  const auto text = store_->get(fmt::format("notice/rank/{}", rank), std::chrono::nanoseconds(0));
  for (const RecentOperation& entry : parse_operations(text)) {
    if (entry.sequence > last.sequence) last = {entry.sequence, entry.operation};
  }
  return last;
}

void FailureNotifier::publish_place(const std::string& place) const {
  if (recorder_ != nullptr) {
    recorder_->set_place(place);
  } else {
    store_->set(fmt::format("notice/place/{}", rank_), place);
  }
}

std::string FailureNotifier::place(int rank) const {
  return recorder_ != nullptr ? recorder_->place(rank)
                              : store_->get(fmt::format("notice/place/{}", rank), {}).value_or("");
}

void FailureNotifier::await_others(uint64_t sequence) const {
  publish_operations();
  // A rank stuck in the same operation gives up at about the same time and shows it.
  for (int attempt = 0; attempt < 10; ++attempt) {
    bool all = true;
    for (int other = 0; other < world_size_ && all; ++other) {
      all = other == rank_ || progress(other).sequence >= sequence;
    }
    if (all) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

std::string FailureNotifier::describe_missing(uint64_t sequence, int* rank) const {
  std::string text;
  *rank = -1;
  if (recorder_ == nullptr) await_others(sequence);
  for (int other = 0; other < world_size_; ++other) {
    if (other == rank_) continue;
    const Progress last = progress(other);
    std::string state;
    if (recorder_ != nullptr) {
      const int64_t process_id = recorder_->process_id(other);
      const char letter = process_id == 0 ? 'R' : status_of(process_id).state;
      if (recorder_->left(other)) {
        state = "has left the communicator";
      } else if (letter == 'T' || letter == 't') {
        state = fmt::format("(process {}) is stopped", process_id);
      } else if (letter == 0 || letter == 'Z') {
        state = fmt::format("(process {}) is gone", process_id);
      }
    }
    const bool lagging = sequence > 0 && last.sequence < sequence;
    if (!lagging && state.empty()) continue;
    if (*rank < 0) *rank = other;
    text += fmt::format("{}rank {} {}", text.empty() ? "" : "; ", other, state);
    if (lagging) {
      text += fmt::format("{}has not reached operation {}", state.empty() ? "" : " and ", sequence);
      text += last.sequence == 0
                  ? "; it has not started any"
                  : fmt::format("; its last was {} ({})", last.sequence, describe(last.operation));
      const std::string site = place(other);
      if (!site.empty()) text += fmt::format(", and its program's last call was at {}", site);
    }
  }
  return text;
}

void FailureNotifier::record(uint64_t sequence, const Fingerprint& operation, uint64_t chain) {
  const std::lock_guard lock(mutex_);
  recent_[sequence % recent_.size()] = {sequence, operation, chain};
}

void FailureNotifier::publish_operations() const {
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    for (const RecentOperation& entry : recent_) {
      if (entry.sequence == 0) continue;
      text += fmt::format("{} {} {} {} {}\n", entry.sequence, entry.operation.what,
                          entry.operation.size, entry.operation.shown, entry.chain);
    }
  }
  store_->set(fmt::format("notice/rank/{}", rank_), text);
}

std::vector<FailureNotifier::RecentOperation> FailureNotifier::parse_operations(
    const std::optional<std::string>& text) {
  std::vector<RecentOperation> entries;
  if (!text) return entries;
  std::istringstream lines(*text);
  RecentOperation entry;
  while (lines >> entry.sequence >> entry.operation.what >> entry.operation.size >>
         entry.operation.shown >> entry.chain) {
    entries.push_back(entry);
  }
  return entries;
}

std::optional<SharedError> FailureNotifier::find_disagreement() const {
  std::vector<RecentOperation> mine;
  {
    const std::lock_guard lock(mutex_);
    std::copy_if(recent_.begin(), recent_.end(), std::back_inserter(mine),
                 [](const RecentOperation& entry) { return entry.sequence != 0; });
  }
  std::sort(mine.begin(), mine.end(), [](auto& a, auto& b) { return a.sequence < b.sequence; });
  const auto texts = store_->get_ranks("notice/rank", world_size_, std::chrono::nanoseconds(0));
  for (int rank = 0; rank < world_size_; ++rank) {
    if (rank == rank_) continue;
    const std::vector<RecentOperation> theirs = parse_operations(texts[static_cast<size_t>(rank)]);
    for (const RecentOperation& entry : mine) {
      const auto same = std::find_if(
          theirs.begin(), theirs.end(),
          [&](const RecentOperation& other) { return other.sequence == entry.sequence; });
      if (same == theirs.end() || same->chain == entry.chain) continue;
      const Disagreement other{
          .rank = rank, .theirs = same->operation, .earlier = same->operation == entry.operation};
      return SharedError{static_cast<int32_t>(ErrorCode::kMismatch), rank_, rank,
                         fmt::format("operation {}: {}", entry.sequence,
                                     describe_disagreement(rank_, entry.operation, other))};
    }
  }
  return std::nullopt;
}

std::string describe_disagreement(int rank, const Fingerprint& mine, const Disagreement& other) {
  if (other.counts != Disagreement::kNone) {
    const bool sending = other.counts == Disagreement::kISend;
    return fmt::format("in {} rank {} {} {} elements {} rank {}, which {} {}", describe(mine), rank,
                       sending ? "sends" : "expects", other.my_count, sending ? "to" : "from",
                       other.rank, sending ? "expects" : "sends", other.their_count);
  }
  if (other.earlier) {
    return fmt::format("rank {} and rank {} both called {}, but an operation before it differed",
                       rank, other.rank, describe(mine));
  }
  const std::string text = fmt::format("rank {} called {} and rank {} called {}", rank,
                                       describe(mine), other.rank, describe(other.theirs));
  return describe(mine) == describe(other.theirs) ? text + " with different counts per rank" : text;
}

}  // namespace coupler::comm
