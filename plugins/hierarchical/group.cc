#include "hierarchical/group.h"

#include <string>
#include <utility>
#include <vector>

namespace db::hierarchical {
namespace {

constexpr uint64_t kWords = sizeof(Announcement) / sizeof(int32_t);

Failure check_moves(const Base& base, const char* role) {
  db_op op{};
  op.kind = DB_ALL_GATHER;
  op.dtype = DB_I32;
  op.count = kWords;
  if (base.supports(op)) return {};
  return Failure::make(DB_ERR_UNSUPPORTED,
                       std::string("its base \"") + role +
                           "\" does not move host memory; name a transport that does, such as "
                           "shm within a machine and gloo_cpu or mpi across machines");
}

// What every rank says about its place, by rank.
Failure announce(const Group& group, int64_t deadline_ns, std::vector<Announcement>* said) {
  Announcement own;
  own.first = group.across->rank();
  own.local_rank = group.local->rank();
  own.local_size = group.local->size();
  Failure failure =
      group.local->exchange(DB_BROADCAST, DB_I32, &own.first, &own.first, 1, deadline_ns);
  said->resize(static_cast<size_t>(group.across->size()));
  if (failure.ok())
    failure =
        group.across->exchange(DB_ALL_GATHER, DB_I32, &own, said->data(), kWords, deadline_ns);
  return failure;
}

std::vector<int32_t> own_numbers(int32_t size) {
  std::vector<int32_t> ranks(static_cast<size_t>(size));
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int32_t>(i);
  return ranks;
}

Failure make_lane(Group* group) {
  const Layout& layout = group->layout;
  db_communicator* const across = group->across->get();
  const bool has_lane = layout.index() < layout.lanes;
  db_communicator* lane = nullptr;
  HostError error;
  const db_status status = across->functions->split(across, has_lane ? layout.index() : -1,
                                                    layout.machine(), &lane, &error.error);
  if (status < 0) return group->across->translate(status, error);
  if (lane != nullptr)
    group->lane = std::make_unique<Base>("across", lane, layout.lane(layout.index()), true);
  return {};
}

}  // namespace

bool can_split(const db_communicator* communicator) {
  return DB_HAS(communicator->functions, db_communicator_functions, split) &&
         communicator->functions->split != nullptr;
}

void Group::abort() const {
  for (const Base* const base : {local.get(), lane.get(), across.get()})
    if (base != nullptr) base->abort();
}

Failure Group::build(Transport local, Transport across, int64_t deadline_ns,
                     std::unique_ptr<Group>* result) {
  auto made = std::make_unique<Group>();
  // The machine's ranks are not known yet, so messages about it use its own numbers.
  made->local = std::make_unique<Base>("local", local.communicator,
                                       own_numbers(local.communicator->size), local.owned);
  made->across = std::make_unique<Base>("across", across.communicator,
                                        own_numbers(across.communicator->size), across.owned);
  Failure failure = check_moves(*made->local, "local");
  if (failure.ok()) failure = check_moves(*made->across, "across");
  std::vector<Announcement> said;
  if (failure.ok()) failure = announce(*made, deadline_ns, &said);
  if (failure.ok()) failure = Layout::make(said, made->across->rank(), &made->layout);
  if (!failure.ok()) return failure;
  made->local->set_ranks(made->layout.own_machine());
  if (made->whole() == nullptr) {
    if (!can_split(across.communicator))
      return Failure::make(DB_ERR_UNSUPPORTED,
                           "the backend of its base \"across\" cannot split communicators, which "
                           "is needed for one among the same ranks of all machines");
    failure = make_lane(made.get());
    if (!failure.ok()) return failure;
  }
  *result = std::move(made);
  return {};
}

}  // namespace db::hierarchical
