#include "save_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>
#include <unordered_set>

namespace coupler::checkpoint::model {
namespace {

constexpr int kSteps = 4;         // of a job
constexpr int kIds = 2 * kSaves;  // saves of the job, and of the one after a restart
constexpr uint8_t kNobody = 0xff;

enum class Phase : uint8_t { kTraining, kBegun, kWritten, kReported, kEnded };
enum class Want : uint8_t { kNothing, kToBegin, kToWait };
enum class End : uint8_t { kOpen, kSaved, kFailed };

struct Rank {
  uint8_t step = 0, saved = 0;  // optimizer steps, and those when the latest save began
  uint8_t saves = 0;            // begun
  uint8_t saving = 0;           // the step that the save under way is of
  Phase phase = Phase::kTraining;
  Want want = Want::kNothing;
  uint8_t written = 0;  // whether its pieces are there
};

struct Piece {
  uint8_t id = kNobody, step = 0;
};

struct Folder {
  uint8_t there = 0;
  std::array<Piece, kRanks> pieces;
};

// Plain bytes without gaps, so that states are compared and hashed as such.
struct State {
  std::array<Rank, kRanks> ranks;
  std::array<uint8_t, kSaves> announced{};  // 0: not yet, 1 + step, or kNobody: it failed
  std::array<std::array<uint8_t, kRanks>, kSaves> reports{};  // 0: not yet, 1: written, 2: failed
  std::array<End, kSaves> ends{};
  std::array<Folder, kIds> folders;  // by path
  uint8_t job = 0;
  uint8_t ghost = kNobody, ghost_id = 0, ghost_step = 0;
  uint8_t torn = 0;
};
static_assert(sizeof(State) == 3 * 7 + 3 + 9 + 3 + 6 * 7 + 5);

std::string_view bytes(const State& state) {
  return {reinterpret_cast<const char*>(&state), sizeof state};
}

class Explorer {
 public:
  explicit Explorer(const Protocol& protocol) : protocol_(protocol) {}

  Found run() {
    visit(State{}, 0, {});
    for (size_t at = 0; at < states_.size() && found_.violation.empty(); ++at) {
      const State state = states_[at].state;
      now_ = at;
      const size_t before = enabled_;
      for (int rank = 0; rank < kRanks; ++rank) expand(state, rank);
      if (protocol_.restart) kill_and_restart(state);
      if (enabled_ == before && !is_over(state)) wrong("the ranks wait for each other", at);
    }
    found_.states = states_.size();
    return std::move(found_);
  }

 private:
  struct Node {
    State state;
    size_t parent;
    Event event;
  };

  uint8_t id_of(int save, const State& state) const {
    return static_cast<uint8_t>(save + kSaves * state.job);
  }
  size_t path_of(uint8_t id) const { return protocol_.identity ? id : 0; }

  static bool is_over(const State& state) {
    return std::all_of(state.ranks.begin(), state.ranks.end(), [](const Rank& rank) {
      return rank.step == kSteps && rank.want == Want::kNothing &&
             (rank.phase == Phase::kTraining || rank.phase == Phase::kEnded);
    });
  }

  void visit(const State& state, size_t parent, const Event& event) {
    ++enabled_;
    if (!seen_.emplace(bytes(state)).second) return;
    states_.push_back({state, parent, event});
    if (state.torn != 0) {
      wrong(fmt::format("rank {}'s pieces are of another save or step than the manifest",
                        state.torn - 1),
            states_.size() - 1);
      return;
    }
    // One path to each kind of event with each fault by each rank; and every 5,000th state's.
    const auto kind = std::tuple(event.action, event.fault, event.rank, event.save);
    if (kinds_.emplace(kind, states_.size()).second || states_.size() % 5000 == 0)
      found_.paths.push_back(path_to(states_.size() - 1));
  }

  std::vector<Event> path_to(size_t at) const {
    std::vector<Event> events;
    for (; at != 0; at = states_[at].parent) events.push_back(states_[at].event);
    std::reverse(events.begin(), events.end());
    return events;
  }

  void wrong(const std::string& what, size_t at) {
    found_.violation = what;
    found_.events = path_to(at);
  }

  void go(const State& next, Action action, int rank, Fault fault = Fault::kNone) {
    const Rank& self = next.ranks[static_cast<size_t>(rank)];
    const bool trains = action == Action::kStep || action == Action::kBegin;
    visit(next, now_,
          {action, rank, fault, std::max(0, self.saves - 1), trains ? self.step : self.saving});
  }

  void expand(const State& state, int number) {
    const auto r = static_cast<size_t>(number);
    const Rank& rank = state.ranks[r];
    if (rank.want == Want::kNothing && rank.step < kSteps) step(state, number);
    if (rank.want == Want::kToWait && rank.phase == Phase::kEnded) {
      State next = state;
      consume(next, r);
      go(next, Action::kStep, number);
    }
    if (rank.want == Want::kToBegin) begin(state, number);
    if (rank.phase == Phase::kBegun) write(state, number);
    if (rank.phase == Phase::kWritten) {
      State next = state;
      next.ranks[r].phase = Phase::kReported;
      next.reports[rank.saves - 1][r] = rank.written != 0 ? 1 : 2;
      go(next, Action::kReport, number);
    }
    if (rank.phase == Phase::kReported && number == 0) commit(state);
    if (rank.phase == Phase::kReported && number != 0 && state.ends[rank.saves - 1] != End::kOpen) {
      State next = state;
      next.ranks[r].phase = Phase::kEnded;
      go(next, Action::kLearn, number);
    }
    if (state.ghost == number) ghost(state);
  }

  // Ranks step together: none is more than one ahead, since their gradients are averaged.
  void step(const State& state, int number) {
    const auto r = static_cast<size_t>(number);
    for (const Rank& other : state.ranks) {
      if (other.step < state.ranks[r].step) return;
    }
    State next = state;
    Rank& rank = next.ranks[r];
    ++rank.step;
    if (!protocol_.identity && rank.phase == Phase::kEnded) rank.phase = Phase::kTraining;
    if (rank.step > rank.saved && rank.saves < (state.job == 0 ? kSaves : 1)) {
      rank.want = rank.phase == Phase::kTraining ? Want::kToBegin : Want::kToWait;
      if (rank.phase == Phase::kEnded) consume(next, r);
    }
    go(next, Action::kStep, number);
  }

  // What a rank does that has to wait for its earlier save before the next, and has waited.
  void consume(State& next, size_t r) {
    Rank& rank = next.ranks[r];
    rank.phase = Phase::kTraining;
    rank.want = Want::kToBegin;
    // As it was: the failure came out of begin(), which was tried again after the next step.
    if (!protocol_.identity && next.ends[rank.saves - 1] == End::kFailed)
      rank.want = Want::kNothing;
  }

  void begin(const State& state, int number) {
    const auto r = static_cast<size_t>(number);
    const auto save = state.ranks[r].saves;
    if (number != 0 && state.announced[save] == 0) return;
    State next = state;
    Rank& rank = next.ranks[r];
    ++rank.saves;
    rank.want = Want::kNothing;
    if (number == 0) {
      State failed = next;
      failed.announced[save] = kNobody;
      go(failed, Action::kBegin, number, Fault::kFails);
      for (Folder& folder : next.folders) folder = {};  // what was left behind
      next.folders[path_of(id_of(save, state))].there = 1;
      next.announced[save] = static_cast<uint8_t>(1 + rank.step);
    } else if (state.announced[save] == kNobody) {
      go(next, Action::kBegin, number);
      return;
    }
    rank.phase = Phase::kBegun;
    rank.saved = rank.saving = rank.step;
    go(next, Action::kBegin, number);
  }

  void write(const State& state, int number) {
    const auto r = static_cast<size_t>(number);
    const Rank& rank = state.ranks[r];
    State next = state;
    next.ranks[r].phase = Phase::kWritten;
    next.ranks[r].written = 0;
    go(next, Action::kWrite, number, Fault::kFails);
    const uint8_t id = id_of(rank.saves - 1, state);
    const bool other_step = state.announced[rank.saves - 1] != 1 + rank.saving;
    if (protocol_.identity && other_step) return;
    if (!put(next, r, id, rank.saving)) return;
    next.ranks[r].written = 1;
    go(next, Action::kWrite, number);
  }

  // False: there is no such folder, or the file is there already.
  bool put(State& next, size_t r, uint8_t id, uint8_t step) const {
    Folder& folder = next.folders[path_of(id)];
    if (folder.there == 0 || folder.pieces[r].id != kNobody) return false;
    folder.pieces[r] = {id, step};
    return true;
  }

  void commit(const State& state) {
    const Rank& rank = state.ranks[0];
    const auto save = static_cast<size_t>(rank.saves - 1);
    const auto& reports = state.reports[save];
    const bool all =
        std::none_of(reports.begin(), reports.end(), [](uint8_t report) { return report == 0; });
    const bool good =
        std::all_of(reports.begin(), reports.end(), [](uint8_t report) { return report == 1; });
    const size_t path = path_of(id_of(static_cast<int>(save), state));
    State next = state;
    next.ranks[0].phase = Phase::kEnded;
    if (good) {
      State saved = next;
      saved.ends[save] = End::kSaved;
      for (size_t r = 0; r < kRanks; ++r) {
        const Piece& piece = state.folders[path].pieces[r];
        if (piece.id != id_of(static_cast<int>(save), state) || piece.step != rank.saving)
          saved.torn = static_cast<uint8_t>(r + 1);
      }
      saved.folders[path] = {};  // it has its name now
      ++found_.commits;
      go(saved, Action::kCommit, 0);
    }
    next.ends[save] = End::kFailed;
    ++found_.aborts;
    const Fault fault = good ? Fault::kFails : all ? Fault::kNone : Fault::kTimeout;
    State stays = next;
    next.folders[path] = {};
    go(next, Action::kCommit, 0, fault);
    if (!good && all) go(stays, Action::kCommit, 0, Fault::kStays);
  }

  void kill_and_restart(const State& state) {
    if (state.job != 0) return;
    for (int number = 1; number < kRanks; ++number) {
      const Rank& rank = state.ranks[static_cast<size_t>(number)];
      if (rank.phase != Phase::kBegun) continue;
      State next;
      next.folders = state.folders;
      next.job = 1;
      next.ghost = static_cast<uint8_t>(number);
      next.ghost_id = id_of(rank.saves - 1, state);
      next.ghost_step = rank.saving;
      go(next, Action::kRestart, number);
    }
  }

  void ghost(const State& state) {
    State next = state;
    next.ghost = kNobody;
    put(next, state.ghost, state.ghost_id, state.ghost_step);
    go(next, Action::kGhost, state.ghost);
  }

  const Protocol protocol_;
  Found found_;
  std::vector<Node> states_;
  std::unordered_set<std::string> seen_;
  std::map<std::tuple<Action, Fault, int, int>, size_t> kinds_;
  size_t now_ = 0;
  size_t enabled_ = 0;
};

}  // namespace

std::string to_string(const Event& event) {
  constexpr const char* kActions[] = {"step",   "begin", "write",   "report",
                                      "commit", "learn", "restart", "late write"};
  constexpr const char* kFaults[] = {"", ", which fails", ", without waiting longer",
                                     ", and the folder stays"};
  return fmt::format("rank {}: {} (save {}, step {}){}", event.rank,
                     kActions[static_cast<size_t>(event.action)], event.save, event.step,
                     kFaults[static_cast<size_t>(event.fault)]);
}

Found explore(const Protocol& protocol) { return Explorer(protocol).run(); }

}  // namespace coupler::checkpoint::model
