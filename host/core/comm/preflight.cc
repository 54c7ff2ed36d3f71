#include "comm/preflight.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"

namespace coupler::comm {
namespace {

// A plugin's strings may not be UTF-8.
std::string to_text(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

SharedSettings decode_settings(const std::string& text) {
  const auto settings = nlohmann::json::parse(text, nullptr, false);
  return settings.is_discarded() ? SharedSettings() : settings.get<SharedSettings>();
}

const std::string* find(const SharedSettings& settings, const std::string& key) {
  const auto found = std::find_if(settings.begin(), settings.end(),
                                  [&](const auto& setting) { return setting.first == key; });
  return found == settings.end() ? nullptr : &found->second;
}

std::string quoted_or_unset(const std::string* value) {
  return value == nullptr ? "not set" : fmt::format("'{}'", *value);
}

// The first difference between rank 0 and another rank.
std::optional<Error> difference(const RendezvousInfo& rendezvous, const SharedSettings& first,
                                const SharedSettings& other, int rank) {
  SharedSettings keys = first;
  keys.insert(keys.end(), other.begin(), other.end());
  for (const auto& [key, unused] : keys) {
    const std::string* ours = find(first, key);
    const std::string* theirs = find(other, key);
    if (ours != nullptr && theirs != nullptr && *ours == *theirs) continue;
    return Error(
        ErrorCode::kMismatch,
        fmt::format("communicator '{}': the ranks differ in {}: {} on rank 0, {} on rank {}",
                    rendezvous.name, key, quoted_or_unset(ours), quoted_or_unset(theirs), rank),
        {.rank = rank,
         .subject = key,
         .hint = "give every rank the same configuration and the same plugins"});
  }
  return std::nullopt;
}

Error absent_error(const RendezvousInfo& rendezvous, const std::vector<int>& ranks,
                   std::chrono::duration<double> waited) {
  return {ErrorCode::kTimeout,
          fmt::format("communicator '{}': no sign of rank{} {} of {} within {:.3g} s",
                      rendezvous.name, ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "),
                      rendezvous.world_size, waited.count()),
          {.rank = ranks.front(),
           .subject = rendezvous.name,
           .hint = "see whether these ranks were started and what they ended with; raise "
                   "backend.timeout if startup takes longer"}};
}

// Rank 0's verdict for the others: "ok", or the error that it throws.
std::string encode_verdict(const std::optional<Error>& problem) {
  if (!problem) return "ok";
  return to_text({{"code", static_cast<int>(problem->code())},
                  {"message", without_hint(problem->what())},
                  {"rank", problem->detail().rank},
                  {"subject", problem->detail().subject},
                  {"hint", problem->detail().hint}});
}

void throw_unless_ok(const RendezvousInfo& rendezvous, const std::string& text) {
  if (text == "ok") return;
  const auto verdict = nlohmann::json::parse(text, nullptr, false);
  if (!verdict.is_object()) {
    throw Error(
        ErrorCode::kInternal,
        fmt::format("communicator '{}': rank 0 published the verdict '{}', which this "
                    "version does not know",
                    rendezvous.name, text),
        {.subject = rendezvous.name, .hint = "run the same version of Coupler on every rank"});
  }
  throw Error(verdict.at("code").get<ErrorCode>(), verdict.at("message").get<std::string>(),
              {.rank = verdict.at("rank").get<int>(),
               .subject = verdict.at("subject").get<std::string>(),
               .hint = verdict.at("hint").get<std::string>()});
}

// Rank 0 collects what each other rank sets under prefix/RANK.
struct Collected {
  std::vector<std::string> values;  // by rank, [0] empty
  std::vector<int> absent;
};
Collected collect(const RendezvousInfo& rendezvous, const std::string& prefix) {
  Collected result;
  // So that rank 0's key is set, too, and the store answers once.
  rendezvous.store->set(prefix + "/0", "");
  for (auto& value :
       rendezvous.store->get_ranks(prefix, rendezvous.world_size, rendezvous.timeout)) {
    if (!value) result.absent.push_back(static_cast<int>(result.values.size()));
    result.values.push_back(std::move(value).value_or(""));
  }
  return result;
}

std::string await_rank_0(const RendezvousInfo& rendezvous, const std::string& key) {
  // Longer than rank 0 itself waits, so that its verdict can still name the absent ranks.
  const auto patience = rendezvous.timeout + std::chrono::seconds(2);
  if (const auto value = rendezvous.store->get(key, patience)) return *value;
  throw absent_error(rendezvous, {0}, patience);
}

}  // namespace

void verify_settings(const RendezvousInfo& rendezvous, const SharedSettings& settings) {
  const std::string prefix = "preflight/facts";
  const std::string verdict_key = "preflight/verdict";
  const std::string own = to_text(settings);
  if (rendezvous.rank != 0) {
    rendezvous.store->set(fmt::format("{}/{}", prefix, rendezvous.rank), own);
    throw_unless_ok(rendezvous, await_rank_0(rendezvous, verdict_key));
    return;
  }
  const Collected others = collect(rendezvous, prefix);
  std::optional<Error> problem;
  if (!others.absent.empty()) problem = absent_error(rendezvous, others.absent, rendezvous.timeout);
  for (int rank = 1; rank < rendezvous.world_size && !problem; ++rank) {
    const std::string& text = others.values[static_cast<size_t>(rank)];
    if (text != own) {
      problem = difference(rendezvous, decode_settings(own), decode_settings(text), rank);
    }
  }
  rendezvous.store->set(verdict_key, encode_verdict(problem));
  if (problem) throw Error(*problem);
}

void throw_absent(const RendezvousInfo& rendezvous, int rank) {
  throw absent_error(rendezvous, {rank}, rendezvous.timeout);
}

std::vector<int> share_world_ranks(const RendezvousInfo& rendezvous, int own) {
  rendezvous.store->set(fmt::format("world/{}", rendezvous.rank), std::to_string(own));
  const auto texts =
      rendezvous.store->get_ranks("world", rendezvous.world_size, rendezvous.timeout);
  std::vector<int> ranks;
  for (const auto& text : texts) {
    if (!text) throw_absent(rendezvous, static_cast<int>(ranks.size()));
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
