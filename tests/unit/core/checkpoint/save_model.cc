#include "save_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "save_state.h"
#include "save_steps.h"

namespace coupler::checkpoint::model {
namespace {

bool is_torn(const State& state) {
  for (uint8_t id = 0; id < kIds; ++id) {
    const Folder& folder = state.folders[id];
    if (folder.place != Place::kCommitted) continue;
    for (const Piece& piece : folder.pieces) {
      if (piece.form != Form::kWhole || piece.save != id || piece.step != folder.step) return true;
    }
  }
  return false;
}

bool is_foreign(const State& state) {
  for (uint8_t id = 0; id < kIds; ++id) {
    for (const Piece& piece : state.folders[id].pieces) {
      if (piece.form != Form::kMissing && piece.save != id) return true;
    }
  }
  return false;
}

bool is_lost(const State& state) {
  for (uint8_t id = 0; id < kIds; ++id) {
    if (state.folders[id].place == Place::kCommitted && id + 1 >= state.reported) return false;
  }
  return state.reported != 0;
}

class Explorer {
 public:
  Explorer(const Protocol& protocol, const Exploration& exploration)
      : protocol_(protocol), exploration_(exploration) {}

  Found run() {
    Steps steps(protocol_, [&](const State& next, const Event& event) { visit(next, event); });
    nodes_.push_back({});
    seen_.insert(0);
    for (now_ = 0; now_ < nodes_.size() && !stops(); ++now_) {
      const State state = nodes_[now_].state;
      if (is_torn(state)) continue;
      if (!steps.of_ranks(state)) wrong(Violation::kStuck, now_);
      steps.of_others(state);
    }
    found_.states = nodes_.size();
    choose_paths();
    return std::move(found_);
  }

 private:
  struct Node {
    State state;
    size_t parent = 0;
    Event event;
    bool exchanged = false;  // ranks 1 and 2, after the event
  };
  struct Hash {
    const std::vector<Node>* nodes;
    size_t operator()(size_t at) const {
      return std::hash<std::string_view>()(bytes((*nodes)[at].state));
    }
  };
  struct Equal {
    const std::vector<Node>* nodes;
    bool operator()(size_t a, size_t b) const {
      return bytes((*nodes)[a].state) == bytes((*nodes)[b].state);
    }
  };

  void visit(const State& next, const Event& event) {
    ++found_.events;
    ++found_.kinds[{event.action, event.fault}];
    nodes_.push_back({next, now_, event});
    Node& node = nodes_.back();
    node.exchanged = simplify(node.state, protocol_);
    const size_t at = nodes_.size() - 1;
    if (!seen_.insert(at).second) {
      nodes_.pop_back();
      return;
    }
    if (is_torn(node.state)) wrong(Violation::kTorn, at);
    if (is_foreign(node.state)) wrong(Violation::kForeign, at);
    if (is_lost(node.state)) wrong(Violation::kLost, at);
  }

  void wrong(Violation what, size_t at) {
    if (!found_.violations.contains(what)) found_.violations[what] = path_to(at);
  }
  bool stops() const {
    return exploration_.until && found_.violations.contains(*exploration_.until);
  }

  Path path_to(size_t last) const {
    std::vector<size_t> way;
    for (size_t at = last; at != 0; at = nodes_[at].parent) way.push_back(at);
    std::reverse(way.begin(), way.end());
    Path path;
    bool exchanged = false;
    for (const size_t at : way) {
      Event event = nodes_[at].event;
      if (exchanged && (event.rank == 1 || event.rank == 2)) event.rank = 3 - event.rank;
      exchanged = exchanged != nodes_[at].exchanged;
      path.events.push_back(event);
      End& end = path.ends[static_cast<size_t>(event.save)];
      if (event.action == Action::kTell)
        end = nodes_[nodes_[at].parent].state.succeeds != 0 ? End::kSaved : End::kFailed;
      if (event.action == Action::kMake && event.fault != Fault::kNone) end = End::kFailed;
    }
    for (size_t id = 0; id < kIds; ++id) path.folders[id] = nodes_[last].state.folders[id].place;
    return path;
  }

  using Kind = std::tuple<Action, Fault, int, int, int, std::array<Phase, kRanks>>;
  Kind kind_of(size_t at) const {
    const Event& event = nodes_[at].event;
    const State& before = nodes_[nodes_[at].parent].state;
    std::array<Phase, kRanks> phases{};
    for (size_t r = 0; r < kRanks; ++r) {
      if (exploration_.contexts || event.rank == kSurvivor) phases[r] = before.ranks[r].phase;
    }
    return {event.action, event.fault, event.rank, event.save, event.folder, phases};
  }

  // Longest paths first: they contain the most kinds.
  void choose_paths() {
    std::set<Kind> chosen;
    for (size_t last = nodes_.size() - 1; last > 0; --last) {
      if (chosen.contains(kind_of(last))) continue;
      found_.paths.push_back(path_to(last));
      for (size_t at = last; at != 0; at = nodes_[at].parent) chosen.insert(kind_of(at));
    }
  }

  const Protocol protocol_;
  const Exploration exploration_;
  Found found_;
  std::vector<Node> nodes_;
  std::unordered_set<size_t, Hash, Equal> seen_{1 << 20, Hash{&nodes_}, Equal{&nodes_}};
  size_t now_ = 0;
};

std::string to_string(const Event& event) {
  constexpr const char* kActions[] = {
      "steps", "begins", "hides",           "removes", "makes a folder",
      "opens", "writes", "collects",        "lists",   "names the checkpoint",
      "tells", "learns", "survives the job"};
  constexpr const char* kFaults[] = {"", ", which fails", ", which fails after it is done",
                                     ", without waiting longer"};
  const std::string who = event.rank == kSurvivor ? "the survivor"
                          : event.rank == kNo     ? "no rank"
                                                  : fmt::format("rank {}", event.rank);
  const std::string what =
      event.folder == kNo ? "" : fmt::format(" the folder of save {}", event.folder);
  return fmt::format("{} {}{} (save {}, step {}){}", who,
                     kActions[static_cast<size_t>(event.action)], what, event.save, event.step,
                     kFaults[static_cast<size_t>(event.fault)]);
}

}  // namespace

std::string to_string(const std::vector<Event>& events) {
  std::string text;
  for (const Event& event : events) text += to_string(event) + "\n";
  return text;
}

Found explore(const Protocol& protocol, const Exploration& exploration) {
  return Explorer(protocol, exploration).run();
}

}  // namespace coupler::checkpoint::model
