#include "shm/groups.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "common/error.h"
#include "common/futex.h"
#include "common/op.h"
#include "common/shrink.h"
#include "shm/communicator.h"

namespace db::shm {
namespace {

struct Choice {
  int32_t color = 0;
  int32_t key = 0;
};

// Where the first rank of each group waits for the others, or why it cannot.
struct Invitation {
  int32_t status = DB_OK;
  int32_t native_code = 0;
  Bytes32 id{};
  uint32_t path_size = 0;
  std::array<char, 108> path{};
  std::array<char, 256> text{};
};

template <class T>
db_status gather_all(db_communicator* communicator, const T& own, std::vector<T>* all,
                     db_error* error) {
  all->resize(static_cast<size_t>(communicator->size));
  db_op gather{};
  gather.struct_size = sizeof gather;
  gather.kind = DB_ALL_GATHER;
  gather.dtype = DB_U8;
  gather.send = &own;
  gather.recv = all->data();
  gather.count = sizeof(T);
  gather.memory = DB_MEMORY_HOST;
  gather.flags = DB_OP_BLOCKING;
  db_request* request = nullptr;
  return submit(communicator, &gather, &request, error);
}

Invitation invite(Reach reach, Listening* listening) {
  Invitation invitation;
  const Failure failure = Listening::open(reach, listening);
  invitation.status = failure.status;
  invitation.native_code = failure.native_code;
  copy_text(invitation.text.data(), invitation.text.size(), failure.message.c_str());
  const MeetingPlace& place = listening->place;
  invitation.id = place.id;
  invitation.path_size = static_cast<uint32_t>(place.path.size());
  std::memcpy(invitation.path.data(), place.path.data(), place.path.size());
  return invitation;
}

// The members of the group of this color, by their new rank.
std::vector<int32_t> members_of(const std::vector<Choice>& all, int32_t color) {
  std::vector<int32_t> members;
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].color == color) members.push_back(static_cast<int32_t>(rank));
  std::stable_sort(members.begin(), members.end(), [&](int32_t a, int32_t b) {
    return all[static_cast<size_t>(a)].key < all[static_cast<size_t>(b)].key;
  });
  return members;
}

MeetingPlace place_of(const Invitation& invitation) {
  return {invitation.id, std::string(invitation.path.data(), invitation.path_size)};
}

// Makes the communicator of members, ranks of self in the order of their new ranks. The errors of
// the new group name ranks of self.
Failure open_group(const Communicator& self, const std::vector<int32_t>& members,
                   const Invitation& invitation, const Listening& listening, int64_t deadline_ns,
                   db_communicator** result) {
  if (invitation.status < 0)
    return Failure::make(invitation.status, invitation.text.data(), 0, members.front(),
                         invitation.native_code);
  Setup setup = self.setup;
  setup.size = static_cast<int32_t>(members.size());
  setup.rank =
      static_cast<int32_t>(std::find(members.begin(), members.end(), self.rank) - members.begin());
  std::string note;
  Failure failure = open(setup, place_of(invitation), listening, deadline_ns, result, &note);
  if (failure.failed_rank < 0) return failure;
  failure.failed_rank = members[static_cast<size_t>(failure.failed_rank)];
  failure.message = "among the ranks of the new group: " + failure.message + " (rank " +
                    std::to_string(failure.failed_rank) + " of the old one)";
  return failure;
}

// ---- shrink ------------------------------------------------------------------------------------

static_assert(sizeof(Invitation) <= sizeof(Offer::invitation) &&
              std::is_trivially_copyable_v<Invitation>);

uint64_t hash_of(const std::vector<int32_t>& members) {
  uint64_t hash = 14695981039346656037ULL;  // FNV-1a
  for (const int32_t rank : members) hash = (hash ^ static_cast<uint64_t>(rank)) * 1099511628211ULL;
  return hash;
}

// The first member's offer, which the others read. A lost rank may have been in any operation, so
// the ranks do not use the communicator, only memory that nothing else uses.
void show(const Communicator& self, const std::vector<int32_t>& members,
          const Invitation& invitation) {
  Offer& offer = self.executor.segment()->control(self.rank).offer;
  offer.members = hash_of(members);
  std::memcpy(offer.invitation.data(), &invitation, sizeof invitation);
  offer.number.store(self.shrinks, std::memory_order_seq_cst);
  futex_wake(&offer.number);
}

Failure await_offer(const Communicator& self, const std::vector<int32_t>& members,
                    int64_t deadline_ns, Invitation* invitation) {
  constexpr int64_t kLookNs = 50'000'000;  // for whether the first member is alive
  const int32_t leader = members.front();
  const std::string name = "rank " + std::to_string(leader);
  const Offer& offer = self.executor.segment()->control(leader).offer;
  for (uint32_t seen = offer.number.load(); seen != self.shrinks; seen = offer.number.load()) {
    const int64_t left = deadline_ns - now_ns();
    if (left <= 0)
      return Failure::make(DB_ERR_TIMEOUT,
                           name + self.executor.peers()->state_of(leader) +
                               " did not call shrink within " +
                               std::to_string(self.setup.default_timeout_ns / 1'000'000) + " ms",
                           DB_ERROR_COMM_DEAD, leader);
    if (self.executor.peers()->has_died(leader) && offer.number.load() != self.shrinks)
      return self.executor.peers()->lost(leader);
    futex_wait(&offer.number, seen, std::min(left, kLookNs));
  }
  if (offer.members != hash_of(members))
    return Failure::make(
        DB_ERR_MISMATCH,
        "rank " + std::to_string(self.rank) + " and " + name + " exclude different ranks",
        DB_ERROR_COMM_DEAD, leader);
  std::memcpy(invitation, offer.invitation.data(), sizeof *invitation);
  return {};
}

Failure shrink_to(Communicator* self, const std::vector<int32_t>& members,
                  db_communicator** result) {
  const int64_t deadline = deadline_after(self->setup.default_timeout_ns);
  ++self->shrinks;
  Invitation invitation;
  Listening listening;
  if (members.size() > 1 && members.front() == self->rank) {
    invitation = invite(self->setup.reach, &listening);
    show(*self, members, invitation);
  } else if (members.size() > 1) {
    Failure failure = await_offer(*self, members, deadline, &invitation);
    if (!failure.ok()) return failure;
  }
  return open_group(*self, members, invitation, listening, deadline, result);
}

db_status shrink(db_communicator* communicator, const int32_t* excluded, uint64_t excluded_count,
                 uint64_t flags, db_communicator** result, db_error* error) {
  *result = nullptr;
  return guarded("shm: ", error, [&] {
    Communicator& self = *Communicator::of(communicator);
    std::vector<int32_t> lost;
    Failure failure = check_excluded(self.rank, self.size, excluded, excluded_count, flags, &lost);
    if (failure.ok()) {
      if ((flags & DB_SHRINK_ABORT) != 0) {
        end_operations(&self);
      } else if (const db_status status = self.queue.drain(error); status < 0) {
        return status;
      }
      std::vector<int32_t> members;
      for (int32_t rank = 0; rank < self.size; ++rank)
        if (!std::binary_search(lost.begin(), lost.end(), rank)) members.push_back(rank);
      failure = shrink_to(&self, members, result);
      if (failure.status == DB_ERR_TIMEOUT) self.queue.fail(failure);
    }
    if (!failure.ok()) failure.message = "shm: " + failure.message;
    return report(failure, error);
  });
}

constexpr db_shrink kShrink = {sizeof(db_shrink), shrink};

}  // namespace

const db_shrink* shrink_extension(const db_communicator* communicator) {
  return communicator->size > 1 ? &kShrink : nullptr;
}

db_status split(db_communicator* communicator, int32_t color, int32_t key, db_communicator** result,
                db_error* error) {
  *result = nullptr;
  return guarded("shm: ", error, [&] {
    const Communicator& self = *Communicator::of(communicator);
    const int64_t deadline = deadline_after(self.setup.default_timeout_ns);
    std::vector<Choice> choices;
    db_status status = gather_all(communicator, Choice{color, key}, &choices, error);
    if (status < 0) return status;
    const std::vector<int32_t> members =
        color < 0 ? std::vector<int32_t>{} : members_of(choices, color);
    const bool leads = members.size() > 1 && members.front() == self.rank;
    Listening listening;
    std::vector<Invitation> invitations;
    status = gather_all(communicator, leads ? invite(self.setup.reach, &listening) : Invitation{},
                        &invitations, error);
    if (status < 0 || members.empty()) return status;
    const Invitation& invitation = invitations[static_cast<size_t>(members.front())];
    Failure failure = open_group(self, members, invitation, listening, deadline, result);
    if (!failure.ok()) failure.message = "shm: split: " + failure.message;
    return report(failure, error);
  });
}

}  // namespace db::shm
