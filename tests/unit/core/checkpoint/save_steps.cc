#include "save_steps.h"

namespace coupler::checkpoint::model {
namespace {

constexpr Fault kMayFail[] = {Fault::kNone, Fault::kFails};

// The job after a kill ends after its one save.
uint8_t last_step(const State& state) { return state.job == 0 ? kSaves + 1 : 1; }
uint8_t last_save(const State& state) { return state.job == 0 ? kSaves : 1; }

bool is_over(const State& state) {
  return std::all_of(state.ranks.begin(), state.ranks.end(), [&](const Rank& rank) {
    return rank.step == last_step(state) && rank.want == Want::kNothing &&
           (rank.phase == Phase::kTraining || rank.phase == Phase::kEnded);
  });
}

void report(State& next, size_t r, uint8_t what) {
  next.reports[id_of(next, next.ranks[r])][r] = what;
  next.ranks[r].phase = Phase::kReported;
}

// The first folder in that place that is not of rank 0's own save; kNobody if there is none.
uint8_t first_in(const State& state, Place place) {
  for (uint8_t id = 0; id < kIds; ++id) {
    if (state.folders[id].place == place && id != id_of(state, state.ranks[0])) return id;
  }
  return kNobody;
}

// Folders hidden but not removed come before unfinished ones.
uint8_t leftover(const State& state) {
  const uint8_t hidden = first_in(state, Place::kHidden);
  return hidden != kNobody ? hidden : first_in(state, Place::kPartial);
}

}  // namespace

void Steps::visit(const State& next, const Event& event) {
  ++visits_;
  visit_(next, event);
}

Event Steps::event_of(const State& state, Action action, int number, Fault fault,
                      int folder) const {
  const Rank& rank = state.ranks[static_cast<size_t>(number)];
  const bool begins = action == Action::kBegin;
  const bool trains = begins || action == Action::kStep;
  const int save = begins ? state.job * kSaves + rank.saves : id_of(state, rank);
  return {action, number, fault, save, trains ? rank.step : rank.saving, folder};
}

bool Steps::of_ranks(const State& state) {
  const size_t before = visits_;
  for (int rank = 0; rank < kRanks; ++rank) of_rank(state, rank);
  return visits_ > before || is_over(state);
}

void Steps::of_rank(const State& state, int number) {
  const auto r = static_cast<size_t>(number);
  const Rank& rank = state.ranks[r];
  const uint8_t id = id_of(state, rank);
  step(state, number);
  if (rank.want == Want::kToBegin) begin(state, number);
  for (const Fault fault : kMayFail) {
    if (rank.phase == Phase::kBegun) {
      State next = state;
      open(next, next.ranks[r], r, id, fault);
      if (next.ranks[r].phase != Phase::kOpened) report(next, r, 2);
      visit(next, event_of(state, Action::kOpen, number, fault));
    }
    if (rank.phase == Phase::kOpened) {
      State next = state;
      write(next, next.ranks[r], r, id, fault);
      report(next, r, fault == Fault::kNone ? 1 : 2);
      visit(next, event_of(state, Action::kWrite, number, fault));
    }
  }
  if (number == 0) return lead(state);
  if (rank.phase == Phase::kReported && state.ends[id] != End::kOpen) {
    State next = state;
    learn(next, r);
    visit(next, event_of(state, Action::kLearn, number));
  }
}

// Ranks step together: none is more than one step ahead, since their gradients are averaged.
void Steps::step(const State& state, int number) {
  const auto r = static_cast<size_t>(number);
  const Rank& now = state.ranks[r];
  const bool in_begin = now.phase == Phase::kClearing || now.phase == Phase::kMaking;
  if (now.want != Want::kNothing || in_begin || now.step == last_step(state)) return;
  for (const Rank& other : state.ranks) {
    if (other.step < now.step) return;
  }
  State next = state;
  Rank& rank = next.ranks[r];
  ++rank.step;
  if (!protocol_.begins_alike && rank.phase == Phase::kEnded) rank.phase = Phase::kTraining;
  if (rank.saves < last_save(state)) {
    rank.want = rank.phase == Phase::kTraining ? Want::kToBegin : Want::kToWait;
    if (rank.phase == Phase::kEnded) learn(next, r);
  }
  visit(next, event_of(next, Action::kStep, number));
}

// The rank learns how its save ended. If it has waited for that, it begins the next one.
void Steps::learn(State& next, size_t r) const {
  Rank& rank = next.ranks[r];
  rank.phase = Phase::kEnded;
  if (rank.want != Want::kToWait) return;
  rank.phase = Phase::kTraining;
  rank.want = Want::kToBegin;
  // The old protocol: begin() reported the failure, and was tried again after the next step.
  if (!protocol_.begins_alike && next.ends[id_of(next, rank)] == End::kFailed)
    rank.want = Want::kNothing;
}

void Steps::begin(const State& state, int number) {
  const auto r = static_cast<size_t>(number);
  const auto id = static_cast<uint8_t>(state.job * kSaves + state.ranks[r].saves);
  if (number != 0 && state.announced[id] == 0) return;
  State next = state;
  Rank& rank = next.ranks[r];
  ++rank.saves;
  rank.want = Want::kNothing;
  rank.saving = rank.step;
  if (number == 0) {
    for (const Folder& folder : state.folders) {
      if (folder.place == Place::kNowhere) continue;
      next.number = std::max(next.number, static_cast<uint8_t>(folder.number + 1));
    }
    rank.phase = Phase::kClearing;
    settle(next);
  } else if (state.announced[id] == 1) {
    rank.phase = Phase::kBegun;
    const bool is_late = at_path(state, id) == kNobody;
    const bool differs = protocol_.steps_compared && rank.step != state.folders[id].step;
    if (is_late || differs) report(next, r, 2);
  }
  visit(next, event_of(state, Action::kBegin, number));
}

// ---- a piece ----

// The folder at that save's path; kNobody if there is none.
uint8_t Steps::at_path(const State& state, uint8_t id) const {
  for (uint8_t other = 0; other < kIds; ++other) {
    const Folder& folder = state.folders[other];
    const bool same =
        protocol_.own_folder ? other == id : folder.number == state.folders[id].number;
    if (same && folder.place == Place::kPartial) return other;
  }
  return kNobody;
}

// Opens rank r's piece, by the rank or its survivor, unless the folder is gone or the file exists.
void Steps::open(State& next, Rank& process, size_t r, uint8_t id, Fault fault) const {
  process.phase = Phase::kTraining;
  const uint8_t folder = at_path(next, id);
  if (fault != Fault::kNone || folder == kNobody) return;
  Piece& piece = next.folders[folder].pieces[r];
  if (piece.form != Form::kMissing) return;
  piece = {Form::kOpen, id, process.saving};
  process.opened = folder;
  process.phase = Phase::kOpened;
}

// Writes to the opened file, whatever its current path. A failed piece is removed by its path.
void Steps::write(State& next, Rank& process, size_t r, uint8_t id, Fault fault) const {
  Piece& piece = next.folders[std::exchange(process.opened, kNobody)].pieces[r];
  process.phase = Phase::kTraining;
  if (fault == Fault::kNone && piece.form == Form::kOpen && piece.save == id)
    piece.form = Form::kWhole;
  const uint8_t folder = at_path(next, id);
  if (fault != Fault::kNone && folder != kNobody) next.folders[folder].pieces[r] = {};
}

// ---- rank 0 ----

Phase Steps::after_pruning() const {
  return protocol_.prunes_last ? Phase::kTelling : Phase::kNaming;
}

// Skips phases in which there is nothing to do.
void Steps::settle(State& next) const {
  Phase& phase = next.ranks[0].phase;
  const bool swept = leftover(next) == kNobody;
  if (phase == Phase::kClearing && swept) phase = Phase::kMaking;
  if (phase == Phase::kPruning && first_in(next, Place::kCommitted) == kNobody)
    phase = Phase::kSweeping;
  if (phase == Phase::kSweeping && swept) phase = after_pruning();
}

void Steps::lead(const State& state) {
  const Phase phase = state.ranks[0].phase;
  const uint8_t own = id_of(state, state.ranks[0]);
  switch (phase) {
    case Phase::kClearing:
    case Phase::kSweeping: {
      const uint8_t id = leftover(state);
      const bool is_hidden = state.folders[id].place == Place::kHidden;
      return remove(state, is_hidden ? Action::kRemove : Action::kHide, id, phase,
                    phase == Phase::kClearing ? Phase::kMaking : after_pruning());
    }
    case Phase::kMaking:
      return make(state);
    case Phase::kReported:
      return collect(state);
    case Phase::kListing:
      go_on(state, Action::kList, Phase::kAbandoning, Fault::kFails);
      return go_on(state, Action::kList, protocol_.prunes_last ? Phase::kNaming : Phase::kPruning);
    case Phase::kNaming:
      return name(state);
    case Phase::kPruning:
      return remove(state, Action::kHide, first_in(state, Place::kCommitted), phase,
                    after_pruning());
    case Phase::kAbandoning:
      // A checkpoint that has its name is not found under the old one.
      if (state.folders[own].place == Place::kCommitted)
        return go_on(state, Action::kHide, Phase::kTelling);
      return remove(state, Action::kHide, own, Phase::kDiscarding, Phase::kTelling);
    case Phase::kDiscarding:
      return remove(state, Action::kRemove, own, Phase::kTelling, Phase::kTelling);
    case Phase::kTelling:
      return tell(state);
    default:
      return;
  }
}

void Steps::go_on(const State& state, Action action, Phase phase, Fault fault, int folder) {
  State next = state;
  next.ranks[0].phase = phase;
  settle(next);
  visit(next, event_of(state, action, 0, fault, folder));
}

// Hides or removes a folder.
void Steps::remove(const State& state, Action action, uint8_t id, Phase then, Phase if_it_fails) {
  go_on(state, action, if_it_fails, Fault::kFails, id);
  State next = state;
  next.folders[id].place = action == Action::kHide ? Place::kHidden : Place::kNowhere;
  if (action == Action::kRemove) next.folders[id].pieces = {};
  go_on(next, action, then, Fault::kNone, id);
}

void Steps::make(const State& state) {
  const uint8_t id = id_of(state, state.ranks[0]);
  State failed = state;
  failed.announced[id] = 2;
  failed.ranks[0].phase = Phase::kTraining;
  visit(failed, event_of(state, Action::kMake, 0, Fault::kFails));
  State next = state;
  next.folders[id] = {Place::kPartial, state.number, state.ranks[0].saving, {}};
  next.announced[id] = 1;
  next.ranks[0].phase = Phase::kBegun;
  visit(next, event_of(state, Action::kMake, 0));
}

void Steps::collect(const State& state) {
  const uint8_t id = id_of(state, state.ranks[0]);
  const auto& reports = state.reports[id];
  const auto has = [&](uint8_t what) {
    return std::find(reports.begin(), reports.end(), what) != reports.end();
  };
  const uint8_t folder = at_path(state, id);
  bool good = !has(0) && !has(2) && folder != kNobody;
  for (size_t r = 0; good && r < kRanks; ++r) {
    const Piece& piece = state.folders[folder].pieces[r];
    good = piece.form == Form::kWhole && (!protocol_.own_folder || piece.save == id);
  }
  go_on(state, Action::kCollect, good ? Phase::kListing : Phase::kAbandoning,
        has(0) ? Fault::kTimeout : Fault::kNone);
}

void Steps::name(const State& state) {
  go_on(state, Action::kName, Phase::kAbandoning, Fault::kFails);
  State next = state;
  next.folders[id_of(state, state.ranks[0])].place = Place::kCommitted;
  go_on(next, Action::kName, Phase::kAbandoning, Fault::kFailsAfter);
  next.succeeds = 1;
  go_on(next, Action::kName, protocol_.prunes_last ? Phase::kPruning : Phase::kTelling);
}

void Steps::tell(const State& state) {
  const uint8_t id = id_of(state, state.ranks[0]);
  State next = state;
  next.ends[id] = state.succeeds != 0 ? End::kSaved : End::kFailed;
  if (state.succeeds != 0) next.reported = static_cast<uint8_t>(id + 1);
  learn(next, 0);
  visit(next, event_of(state, Action::kTell, 0));
}

// ---- a kill ----

void Steps::of_others(const State& state) {
  if (state.survivor_rank != kNobody) {
    const bool opened = state.survivor.phase == Phase::kOpened;
    const uint8_t id = state.survivor.saves;
    for (const Fault fault : kMayFail) {
      State next = state;
      opened ? write(next, next.survivor, state.survivor_rank, id, fault)
             : open(next, next.survivor, state.survivor_rank, id, fault);
      if (next.survivor.phase != Phase::kOpened) {
        next.survivor = {};
        next.survivor_rank = kNobody;
      }
      visit(next,
            {opened ? Action::kWrite : Action::kOpen, kSurvivor, fault, id, state.survivor.saving});
    }
  }
  if (state.job != 0) return;
  for (const int rank : {kNo, 1, 2}) {
    State next;
    next.folders = state.folders;
    next.reported = state.reported;
    next.job = 1;
    if (rank != kNo) {
      next.survivor = state.ranks[static_cast<size_t>(rank)];
      if (next.survivor.phase != Phase::kBegun && next.survivor.phase != Phase::kOpened) continue;
      next.survivor.saves = id_of(state, next.survivor);
      next.survivor.step = 0;
      next.survivor.want = Want::kNothing;
      next.survivor_rank = static_cast<uint8_t>(rank);
    }
    visit(next, {Action::kKill, rank});
  }
}

}  // namespace coupler::checkpoint::model
