#include "comm/notice.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <thread>

#include "base/process.h"

namespace coupler {
namespace {

constexpr std::string_view kMarkKey = "notice/mark";

std::string encode_mark(const Mark& mark) {
  return fmt::format("{} {} {} {}", mark.code, mark.reporter, mark.failed_rank, mark.text);
}

std::optional<Mark> decode_mark(const std::string& text) {
  std::istringstream words(text);
  Mark mark;
  if (!(words >> mark.code >> mark.reporter >> mark.failed_rank)) return std::nullopt;
  words.get();
  std::getline(words, mark.text, '\0');
  return mark;
}

}  // namespace

Mark Notice::publish(const Mark& mark) {
  if (board_ != nullptr) {
    if (board_->set_mark(mark)) return mark;
    return board_->mark().value_or(mark);
  }
  // Through the store: the first to count is the first to write. Any other rank reads the mark if
  // it is there, and otherwise keeps its own, which is just as true.
  if (store_->add(std::string(kMarkKey), 1) == 1) {
    store_->set(std::string(kMarkKey), encode_mark(mark));
    return mark;
  }
  return this->mark().value_or(mark);
}

std::optional<Mark> Notice::mark() const {
  if (board_ != nullptr) return board_->mark();
  const std::optional<std::string> text =
      store_->get(std::string(kMarkKey), std::chrono::nanoseconds(0));
  return text ? decode_mark(*text) : std::nullopt;
}

Progress Notice::progress(int rank) const {
  if (board_ != nullptr) return board_->progress(rank);
  Progress last;
  for (const Remembered& entry : shown_by(rank)) {
    if (entry.sequence > last.sequence) last = {entry.sequence, entry.operation};
  }
  return last;
}

void Notice::show_place(const std::string& place) const {
  if (board_ != nullptr) {
    board_->set_place(place);
  } else {
    store_->set(fmt::format("notice/place/{}", rank_), place);
  }
}

std::string Notice::place(int rank) const {
  return board_ != nullptr ? board_->place(rank)
                           : store_->get(fmt::format("notice/place/{}", rank), {}).value_or("");
}

void Notice::await_others(uint64_t sequence) const {
  show();
  // A rank stuck in the same operation gives up at about the same time and shows it.
  for (int attempt = 0; attempt < 10; ++attempt) {
    bool all = true;
    for (int other = 0; other < world_ && all; ++other) {
      all = other == rank_ || progress(other).sequence >= sequence;
    }
    if (all) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

std::string Notice::absent(uint64_t sequence, int* rank) const {
  std::string text;
  *rank = -1;
  if (board_ == nullptr) await_others(sequence);
  for (int other = 0; other < world_; ++other) {
    if (other == rank_) continue;
    const Progress last = progress(other);
    std::string state;
    if (board_ != nullptr) {
      const int64_t process_id = board_->process_id(other);
      const char letter = process_id == 0 ? 'R' : status_of(process_id).state;
      if (board_->left(other)) {
        state = "has left the communicator";
      } else if (letter == 'T' || letter == 't') {
        state = fmt::format("(process {}) is stopped", process_id);
      } else if (letter == 0 || letter == 'Z') {
        state = fmt::format("(process {}) is gone", process_id);
      }
    }
    const bool behind = sequence > 0 && last.sequence < sequence;
    if (!behind && state.empty()) continue;
    if (*rank < 0) *rank = other;
    text += fmt::format("{}rank {} {}", text.empty() ? "" : "; ", other, state);
    if (behind) {
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

void Notice::remember(uint64_t sequence, const Fingerprint& operation, uint64_t chain) {
  const std::lock_guard lock(mutex_);
  recent_[sequence % recent_.size()] = {sequence, operation, chain};
}

void Notice::show() const {
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    for (const Remembered& entry : recent_) {
      if (entry.sequence == 0) continue;
      text += fmt::format("{} {} {} {} {}\n", entry.sequence, entry.operation.what,
                          entry.operation.size, entry.operation.shown, entry.chain);
    }
  }
  store_->set(fmt::format("notice/rank/{}", rank_), text);
}

std::vector<Notice::Remembered> Notice::shown_by(int rank) const {
  return shown(store_->get(fmt::format("notice/rank/{}", rank), std::chrono::nanoseconds(0)));
}

std::vector<Notice::Remembered> Notice::shown(const std::optional<std::string>& text) {
  std::vector<Remembered> entries;
  if (!text) return entries;
  std::istringstream lines(*text);
  Remembered entry;
  while (lines >> entry.sequence >> entry.operation.what >> entry.operation.size >>
         entry.operation.shown >> entry.chain) {
    entries.push_back(entry);
  }
  return entries;
}

std::optional<Mark> Notice::compare() const {
  std::vector<Remembered> mine;
  {
    const std::lock_guard lock(mutex_);
    std::copy_if(recent_.begin(), recent_.end(), std::back_inserter(mine),
                 [](const Remembered& entry) { return entry.sequence != 0; });
  }
  std::sort(mine.begin(), mine.end(), [](auto& a, auto& b) { return a.sequence < b.sequence; });
  const auto texts = store_->get_ranks("notice/rank", world_, std::chrono::nanoseconds(0));
  for (int rank = 0; rank < world_; ++rank) {
    if (rank == rank_) continue;
    const std::vector<Remembered> theirs = shown(texts[static_cast<size_t>(rank)]);
    for (const Remembered& entry : mine) {
      const auto same = std::find_if(theirs.begin(), theirs.end(), [&](const Remembered& other) {
        return other.sequence == entry.sequence;
      });
      if (same == theirs.end() || same->chain == entry.chain) continue;
      const Disagreement other{
          .rank = rank, .theirs = same->operation, .earlier = same->operation == entry.operation};
      return Mark{static_cast<int32_t>(ErrorCode::kMismatch), rank_, rank,
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

}  // namespace coupler
