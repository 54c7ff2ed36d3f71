#include "comm/preflight.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>

namespace coupler::comm {
namespace {

using Clock = std::chrono::steady_clock;

// Between two lines of facts, and between key and value: bytes that no TOML string needs.
constexpr char kLineEnd = '\x1e';
constexpr char kValueStart = '\x1f';

std::string encode_settings(const SharedSettings& settings) {
  std::string text;
  for (const auto& [key, value] : settings) {
    text.append(key).push_back(kValueStart);
    text.append(value).push_back(kLineEnd);
  }
  return text;
}

SharedSettings decode_settings(const std::string& text) {
  SharedSettings settings;
  for (size_t start = 0; start < text.size();) {
    const size_t end = text.find(kLineEnd, start);
    const size_t middle = text.find(kValueStart, start);
    if (end == std::string::npos || middle >= end) break;
    settings.emplace_back(text.substr(start, middle - start),
                          text.substr(middle + 1, end - middle - 1));
    start = end + 1;
  }
  return settings;
}

const std::string* find(const SharedSettings& settings, const std::string& key) {
  const auto found = std::find_if(settings.begin(), settings.end(),
                                  [&](const auto& setting) { return setting.first == key; });
  return found == settings.end() ? nullptr : &found->second;
}

std::string quoted_or_unset(const std::string* value) {
  return value == nullptr ? "not set" : fmt::format("'{}'", *value);
}

// The first difference between rank 0 and another rank, or "".
std::string difference(const SharedSettings& first, const SharedSettings& other, int rank) {
  if (first == other) return {};  // usual; the rest is slow with thousands of ranks
  SharedSettings keys = first;
  keys.insert(keys.end(), other.begin(), other.end());
  for (const auto& [key, unused] : keys) {
    const std::string* ours = find(first, key);
    const std::string* theirs = find(other, key);
    if (ours != nullptr && theirs != nullptr && *ours == *theirs) continue;
    return fmt::format("{}{}{}{}{}{}{}", key, kValueStart, quoted_or_unset(ours), kValueStart, rank,
                       kValueStart, quoted_or_unset(theirs));
  }
  return {};
}

std::vector<std::string> split_fields(const std::string& text) {
  std::vector<std::string> fields(1);
  for (char c : text) {
    if (c == kValueStart) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

[[noreturn]] void throw_verdict(const RendezvousInfo& rendezvous, const std::string& verdict) {
  const std::vector<std::string> fields = split_fields(verdict);
  if (fields.size() == 3 && fields[0] == "absent") {
    throw Error(ErrorCode::kTimeout,
                fmt::format("communicator '{}': no sign of rank{} {} of {} within {} s",
                            rendezvous.name, fields[1].find(',') == std::string::npos ? "" : "s",
                            fields[1], rendezvous.world_size, fields[2]),
                {.rank = std::stoi(fields[1]),
                 .subject = rendezvous.name,
                 .hint = "see whether these ranks were started and what they ended with; "
                         "raise backend.timeout if startup takes longer"});
  }
  if (fields.size() != 4) {
    throw Error(
        ErrorCode::kInternal,
        fmt::format("communicator '{}': rank 0 published the verdict '{}', which this "
                    "version does not know",
                    rendezvous.name, verdict),
        {.subject = rendezvous.name, .hint = "run the same version of Coupler on every rank"});
  }
  throw Error(ErrorCode::kMismatch,
              fmt::format("communicator '{}': the ranks differ in {}: {} on rank 0, {} on rank {}",
                          rendezvous.name, fields[0], fields[1], fields[3], fields[2]),
              {.rank = std::stoi(fields[2]),
               .subject = fields[0],
               .hint = "give every rank the same configuration and the same plugins"});
}

// Rank 0 collects what each other rank sets under prefix/RANK.
struct Collected {
  std::vector<std::string> values;  // by rank, [0] empty
  std::string absent;               // "1, 3"
};
Collected collect(const RendezvousInfo& rendezvous, const std::string& prefix) {
  Collected result;
  // So that rank 0's key is set, too, and the store answers once.
  rendezvous.store->set(prefix + "/0", "");
  auto values = rendezvous.store->get_ranks(prefix, rendezvous.world_size, rendezvous.timeout);
  for (size_t rank = 0; rank < values.size(); ++rank) {
    if (!values[rank]) {
      result.absent += fmt::format("{}{}", result.absent.empty() ? "" : ", ", rank);
    }
    result.values.push_back(std::move(values[rank]).value_or(""));
  }
  return result;
}

std::string await_rank_0(const RendezvousInfo& rendezvous, const std::string& key) {
  // Longer than rank 0 itself waits, so that its verdict can still name the absent ranks.
  const auto value = rendezvous.store->get(key, rendezvous.timeout + std::chrono::seconds(2));
  if (value) return *value;
  throw_verdict(rendezvous,
                fmt::format("absent{}0{}{:.3g}", kValueStart, kValueStart,
                            std::chrono::duration<double>(rendezvous.timeout).count() + 2));
}

}  // namespace

void verify_settings(const RendezvousInfo& rendezvous, const SharedSettings& settings) {
  const std::string prefix = "preflight/facts";
  const std::string verdict_key = "preflight/verdict";
  if (rendezvous.rank != 0) {
    rendezvous.store->set(fmt::format("{}/{}", prefix, rendezvous.rank), encode_settings(settings));
    const std::string verdict = await_rank_0(rendezvous, verdict_key);
    if (verdict != "ok") throw_verdict(rendezvous, verdict);
    return;
  }
  const Collected others = collect(rendezvous, prefix);
  std::string verdict = "ok";
  if (!others.absent.empty()) {
    verdict = fmt::format("absent{}{}{}{:.3g}", kValueStart, others.absent, kValueStart,
                          std::chrono::duration<double>(rendezvous.timeout).count());
  }
  for (int rank = 1; rank < rendezvous.world_size && verdict == "ok"; ++rank) {
    const std::string text =
        difference(settings, decode_settings(others.values[static_cast<size_t>(rank)]), rank);
    if (!text.empty()) verdict = text;
  }
  rendezvous.store->set(verdict_key, verdict);
  if (verdict != "ok") throw_verdict(rendezvous, verdict);
}

std::vector<int> share_world_ranks(const RendezvousInfo& rendezvous, int own) {
  rendezvous.store->set(fmt::format("world/{}", rendezvous.rank), std::to_string(own));
  const auto texts =
      rendezvous.store->get_ranks("world", rendezvous.world_size, rendezvous.timeout);
  std::vector<int> ranks;
  for (const auto& text : texts) {
    if (!text) {
      throw_verdict(rendezvous,
                    fmt::format("absent{}{}{}{:.3g}", kValueStart, ranks.size(), kValueStart,
                                std::chrono::duration<double>(rendezvous.timeout).count()));
    }
    ranks.push_back(std::stoi(*text));
  }
  return ranks;
}

std::unique_ptr<FlightRecorder> share_recorder(const RendezvousInfo& rendezvous) {
  const size_t bytes = FlightRecorder::bytes(rendezvous.world_size);
  std::unique_ptr<SharedMemory> memory;
  bool shared = false;
  if (rendezvous.rank == 0) {
    memory = SharedMemory::create(bytes);
    rendezvous.store->set("board/offer", memory ? memory->offer() : "none");
    const Collected others = collect(rendezvous, "board/opened");
    shared = memory != nullptr && others.absent.empty() &&
             std::all_of(others.values.begin() + 1, others.values.end(),
                         [](const std::string& value) { return value == "yes"; });
    rendezvous.store->set("board/verdict", shared ? "shared" : "apart");
    if (memory) memory->close_file();
  } else {
    memory = SharedMemory::open(await_rank_0(rendezvous, "board/offer"), bytes);
    rendezvous.store->set(fmt::format("board/opened/{}", rendezvous.rank), memory ? "yes" : "no");
    shared = await_rank_0(rendezvous, "board/verdict") == "shared";
  }
  if (!shared) return nullptr;
  return std::make_unique<FlightRecorder>(std::move(memory), rendezvous.rank,
                                          rendezvous.world_size);
}

}  // namespace coupler::comm
