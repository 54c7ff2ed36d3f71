// A test double of a backend: the ranks are threads of one process and exchange data in memory. It
// does what it is told without checks, so ranks that disagree hang or get garbage: the tests look
// at how the host handles that. Built four times: plain, with DOUBLE_CANNOT_ABORT, with
// DOUBLE_WRAPS as a wrapper around a base, and with DOUBLE_OF_DEVICES as a backend for device
// memory (which is host memory), whose streams count their waits.
#include <coupler/distributed_backend.h>
#include <coupler/memory.h>
#include <coupler/registration.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#if defined(DOUBLE_WRAPS)
#define DOUBLE_NAME "double_wrapper"
#elif defined(DOUBLE_CANNOT_ABORT)
#define DOUBLE_NAME "double_cannot_abort"
#elif defined(DOUBLE_OF_DEVICES)
#define DOUBLE_NAME "double_of_devices"
#else
#define DOUBLE_NAME "double"
#endif

namespace {

using Clock = std::chrono::steady_clock;

// Like a library that cannot abort what it waits for: a deadline does not end the wait either.
#if defined(DOUBLE_CANNOT_ABORT)
constexpr bool kKeepsDeadlines = false;
#else
constexpr bool kKeepsDeadlines = true;
#endif

struct Part {
  bool here = false;
  db_op op = {};
  std::vector<uint64_t> send_counts, recv_counts;
};

// One collective, complete once every rank has arrived; the last one moves the data for all.
struct Round {
  std::vector<Part> parts;
  int arrived = 0;
  bool complete = false;
};

struct Message {
  const void* send = nullptr;
  void* recv = nullptr;
  uint64_t bytes = 0;
  bool complete = false;
};

struct Group {
  explicit Group(int world_size) : size(world_size) {}
  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<uint64_t, std::shared_ptr<Round>> rounds;
  std::map<std::string, std::shared_ptr<Message>> messages;
  std::map<std::string, std::pair<std::shared_ptr<Group>, int>> splits;
};

struct Communicator {
  db_communicator base = {};
  std::shared_ptr<Group> group;
  int64_t timeout_ns = 0;
  uint64_t next = 0, next_split = 0;
  std::map<std::string, uint64_t> pairs;
  bool aborted = false;  // guarded by the group's mutex
  db_communicator* wrapped = nullptr;
};

struct Request {
  Communicator* owner = nullptr;
  std::shared_ptr<Round> round;
  std::shared_ptr<Message> message;
  Clock::time_point deadline;
};

Communicator* self(db_communicator* c) { return reinterpret_cast<Communicator*>(c); }

db_status fail(db_error* error, db_status code, const char* text, uint32_t flags) {
  if (error == nullptr) return code;
  error->code = code;
  error->failed_rank = -1;
  error->flags = flags;
  if (error->message != nullptr && error->message_capacity > 0) {
    std::snprintf(error->message, error->message_capacity, "%s", text);
  }
  return code;
}

uint64_t element(db_dtype dtype) {
  switch (dtype) {
    case DB_I64:
    case DB_U64:
    case DB_F64:
      return 8;
    case DB_U8:
      return 1;
    default:
      return 4;
  }
}

template <typename T>
void add_up(Round& round) {
  for (uint64_t i = 0; i < round.parts[0].op.count; ++i) {
    T sum = 0;
    for (const Part& part : round.parts) {
      T value;
      std::memcpy(&value, static_cast<const char*>(part.op.send) + i * sizeof(T), sizeof(T));
      sum = static_cast<T>(sum + value);
    }
    for (const Part& part : round.parts) {
      std::memcpy(static_cast<char*>(part.op.recv) + i * sizeof(T), &sum, sizeof(T));
    }
  }
}

void scatter_sums(Round& round) {
  const uint64_t count = round.parts[0].op.count;
  for (size_t rank = 0; rank < round.parts.size(); ++rank) {
    for (uint64_t i = 0; i < count; ++i) {
      float sum = 0;
      for (const Part& part : round.parts)
        sum += static_cast<const float*>(part.op.send)[rank * count + i];
      static_cast<float*>(round.parts[rank].op.recv)[i] = sum;
    }
  }
}

void move_bytes(Round& round) {
  const db_op& first = round.parts[0].op;
  const uint64_t bytes = first.count * element(first.dtype);
  const size_t world_size = round.parts.size();
  if (first.kind == DB_ALL_REDUCE) {
    first.dtype == DB_F32 ? add_up<float>(round) : add_up<int64_t>(round);
  } else if (first.kind == DB_REDUCE_SCATTER) {
    scatter_sums(round);
  } else if (first.kind == DB_BROADCAST) {
    const Part& root = round.parts[static_cast<size_t>(first.root_or_peer)];
    for (const Part& part : round.parts) std::memmove(part.op.recv, root.op.send, bytes);
  } else if (first.kind == DB_ALL_GATHER) {
    for (const Part& part : round.parts) {
      for (size_t rank = 0; rank < world_size; ++rank) {
        std::memmove(static_cast<char*>(part.op.recv) + rank * bytes, round.parts[rank].op.send,
                     bytes);
      }
    }
  }
}

db_status supports(const db_communicator*, const db_op* op, int32_t* score) {
  const bool sums = op->kind != DB_ALL_REDUCE || ((op->reduce == DB_SUM || op->reduce == DB_MIN) &&
                                                  (op->dtype == DB_F32 || op->dtype == DB_I64));
  const bool scatters =
      op->kind == DB_REDUCE_SCATTER && op->reduce == DB_SUM && op->dtype == DB_F32;
  const bool moves = op->kind == DB_ALL_REDUCE || op->kind == DB_BROADCAST ||
                     op->kind == DB_ALL_GATHER || op->kind == DB_BARRIER ||
                     op->kind == DB_ALL_TO_ALL_V || scatters || op->kind == DB_SEND ||
                     op->kind == DB_RECV;
  *score = sums && moves ? 1 : 0;
  return DB_OK;
}

db_status outcome(const Request& request, db_error* error) {
  if ((request.round && request.round->complete) ||
      (request.message && request.message->complete)) {
    return DB_OK;
  }
  if (request.owner->aborted) return fail(error, DB_ERR_ABORTED, "aborted", DB_ERROR_COMM_DEAD);
  if (Clock::now() >= request.deadline) {
    return fail(error, DB_ERR_TIMEOUT, "no other rank came", DB_ERROR_COMM_DEAD);
  }
  return DB_IN_PROGRESS;
}

void post_message(Communicator* mine, const db_op* op, Request& request) {
  const bool sending = op->kind == DB_SEND;
  const std::string key = std::to_string(sending ? mine->base.rank : op->root_or_peer) + ">" +
                          std::to_string(sending ? op->root_or_peer : mine->base.rank) + "#" +
                          std::to_string(op->tag);
  const uint64_t number = ++mine->pairs[key + (sending ? "s" : "r")];
  auto& message = mine->group->messages[key + "/" + std::to_string(number)];
  if (!message) message = std::make_shared<Message>();
  if (sending) {
    message->send = op->send;
    message->bytes = op->count * element(op->dtype);
  } else {
    message->recv = op->recv;
  }
  if (message->send != nullptr && message->recv != nullptr) {
    std::memcpy(message->recv, message->send, message->bytes);
    message->complete = true;
  }
  request.message = message;
}

void post_part(Communicator* mine, const db_op* op, Request& request) {
  auto& round = mine->group->rounds[++mine->next];
  if (!round) {
    round = std::make_shared<Round>();
    round->parts.resize(static_cast<size_t>(mine->group->size));
  }
  request.round = round;
  Part& part = round->parts[static_cast<size_t>(mine->base.rank)];
  part.here = true;
  part.op = *op;
  if (++round->arrived == mine->group->size) {
    // Ranks in different kinds of operations wait for each other forever.
    for (const Part& other : round->parts) {
      if (other.op.kind != op->kind) return;
    }
    move_bytes(*round);
    round->complete = true;
  }
}

db_status wait_host(db_request* request, int64_t, db_error* error) {
  auto* mine = reinterpret_cast<Request*>(request);
  std::unique_lock lock(mine->owner->group->mutex);
  db_status status = outcome(*mine, error);
  while (status == DB_IN_PROGRESS) {
    mine->owner->group->changed.wait_until(lock, mine->deadline);
    status = outcome(*mine, error);
  }
  return status;
}

db_status submit(db_communicator* communicator, const db_op* op, db_request** result,
                 db_error* error) {
  Communicator* mine = self(communicator);
  if (mine->wrapped != nullptr) {
    return mine->wrapped->functions->submit(mine->wrapped, op, result, error);
  }
  *result = nullptr;
  int32_t score = 0;
  supports(communicator, op, &score);
  if (score == 0) return fail(error, DB_ERR_UNSUPPORTED, "not in this double", 0);
  if (op->kind == DB_BROADCAST && op->recv == nullptr) {
    return fail(error, DB_ERR_INVALID_ARGUMENT, "no buffer", 0);
  }
  auto request = std::make_unique<Request>();
  request->owner = mine;
  request->deadline =
      kKeepsDeadlines
          ? Clock::now() +
                std::chrono::nanoseconds(op->timeout_ns > 0 ? op->timeout_ns : mine->timeout_ns)
          : Clock::time_point::max();
  {
    const std::lock_guard lock(mine->group->mutex);
    if (mine->aborted) return fail(error, DB_ERR_ABORTED, "aborted", DB_ERROR_COMM_DEAD);
    if (op->kind == DB_SEND || op->kind == DB_RECV) {
      post_message(mine, op, *request);
    } else {
      post_part(mine, op, *request);
    }
  }
  mine->group->changed.notify_all();
  if ((op->flags & DB_OP_BLOCKING) != 0) {
    return wait_host(reinterpret_cast<db_request*>(request.get()), -1, error);
  }
  *result = reinterpret_cast<db_request*>(request.release());
  return DB_IN_PROGRESS;
}

#if defined(DOUBLE_OF_DEVICES)
db_status wait_stream(db_request*, void* stream, db_error*) {
  ++*static_cast<std::atomic<int>*>(stream);
  return DB_OK;
}
#else
constexpr auto wait_stream = nullptr;
#endif

db_status test(db_request* request, db_error* error) {
  auto* mine = reinterpret_cast<Request*>(request);
  const std::lock_guard lock(mine->owner->group->mutex);
  return outcome(*mine, error);
}

void release(db_request* request) { delete reinterpret_cast<Request*>(request); }

extern const db_communicator_functions kFunctions;

// Threads reach all memory; at most 1 MiB at a time is given.
db_status allocate_memory(db_communicator*, uint64_t bytes, void** memory, void** handle,
                          db_error* error) {
  if (bytes > (1u << 20)) return fail(error, DB_ERR_NO_MEMORY, "more than 1 MiB", 0);
  *handle = *memory = std::calloc(bytes, 1);
  return DB_OK;
}

constexpr db_peer_memory kPeerMemory = {sizeof(db_peer_memory), allocate_memory, std::free};

#if defined(DOUBLE_OF_DEVICES)
}  // namespace

// The current number of registrations, for tests, which look up the symbol. At most two are taken.
extern "C" {
__attribute__((visibility("default"))) std::atomic<int> double_registrations{0};
}

namespace {

db_status add_registration(db_communicator*, void* buffer, uint64_t, void** handle,
                           db_error* error) {
  if (double_registrations == 2)
    return fail(error, DB_ERR_UNSUPPORTED, "no more than two registrations", 0);
  ++double_registrations;
  *handle = buffer;
  return DB_OK;
}

db_status remove_registration(db_communicator*, void*, db_error*) {
  --double_registrations;
  return DB_OK;
}

constexpr db_registration kRegistration = {sizeof(db_registration), add_registration,
                                           remove_registration};

const void* get_extension(const db_communicator*, const char* id) {
  if (std::strcmp(id, DB_REGISTRATION) == 0) return &kRegistration;
  return std::strcmp(id, DB_PEER_MEMORY) == 0 ? &kPeerMemory : nullptr;
}
#else
const void* get_extension(const db_communicator*, const char* id) {
  return std::strcmp(id, DB_PEER_MEMORY) == 0 ? &kPeerMemory : nullptr;
}
#endif

// By the caller's color: all ranks first take part in one round; keys equal the old ranks.
db_status split(db_communicator* communicator, int32_t color, int32_t, db_communicator** result,
                db_error*) {
  Communicator* mine = self(communicator);
  *result = nullptr;
  const std::string key = std::to_string(++mine->next_split) + "/";
  std::unique_lock lock(mine->group->mutex);
  auto& all = mine->group->splits[key];
  std::vector<int> members;
  mine->group->splits[key + std::to_string(mine->base.rank)].second = color;
  ++all.second;
  mine->group->changed.notify_all();
  mine->group->changed.wait_for(lock, std::chrono::nanoseconds(mine->timeout_ns),
                                [&] { return all.second == mine->group->size; });
  int rank = 0;
  for (int other = 0; other < mine->group->size; ++other) {
    if (mine->group->splits[key + std::to_string(other)].second != color) continue;
    if (other == mine->base.rank) rank = static_cast<int>(members.size());
    members.push_back(other);
  }
  if (color < 0) return DB_OK;
  auto& shared = mine->group->splits[key + "color" + std::to_string(color)].first;
  if (!shared) shared = std::make_shared<Group>(static_cast<int>(members.size()));
  auto made = std::make_unique<Communicator>();
  made->base = {sizeof(db_communicator), &kFunctions, rank, static_cast<int32_t>(members.size())};
  made->group = shared;
  made->timeout_ns = mine->timeout_ns;
  *result = &made.release()->base;
  return DB_OK;
}

db_status async_error(const db_communicator*, db_error*) { return DB_OK; }

#if defined(DOUBLE_CANNOT_ABORT)
db_status abort_pending(db_communicator*) { return DB_ERR_UNSUPPORTED; }
#else
db_status abort_pending(db_communicator* communicator) {
  Communicator* mine = self(communicator);
  if (mine->wrapped != nullptr) return mine->wrapped->functions->abort(mine->wrapped);
  {
    const std::lock_guard lock(mine->group->mutex);
    mine->aborted = true;
  }
  mine->group->changed.notify_all();
  return DB_OK;
}
#endif

void destroy(db_communicator* communicator) { delete self(communicator); }

const db_communicator_functions kFunctions = {sizeof(db_communicator_functions),
                                              supports,
                                              submit,
                                              test,
                                              wait_host,
                                              wait_stream,
                                              release,
                                              split,
                                              async_error,
                                              abort_pending,
                                              destroy,
                                              get_extension};

db_status probe(const db_host*, int32_t* score, char* reason, uint64_t capacity) {
  *score = 1;
  std::snprintf(reason, capacity, "a test double");
  return DB_OK;
}

const db_option kFactor = {
    sizeof(db_option), "factor", DB_OPTION_F64, 0, 0, 1.5, nullptr, "A number without a meaning."};
const db_option kMode = {
    sizeof(db_option), "mode", DB_OPTION_STRING, 0, 0, 0, "plain", "A string without a meaning."};
const db_option* const kOptions[] = {&kFactor, &kMode};

const db_option* const* default_options(uint64_t* count) {
  *count = 2;
  return kOptions;
}

db_status create(const db_communicator_params* params, db_communicator** result, db_error* error) {
  auto made = std::make_unique<Communicator>();
  made->base = {sizeof(db_communicator), &kFunctions, params->rank, params->size};
  made->timeout_ns = params->default_timeout_ns;
#if defined(DOUBLE_WRAPS)
  if (params->base_count != 1 || std::strcmp(params->bases[0]->role, "world") != 0) {
    return fail(error, DB_ERR_INVALID_ARGUMENT, "a wrapper needs a base", 0);
  }
  made->wrapped = params->bases[0]->communicator;
#endif
  if (params->size == 1) {
    made->group = std::make_shared<Group>(1);
  } else if (params->rank == 0) {
    auto* shared = new std::shared_ptr<Group>(std::make_shared<Group>(params->size));
    made->group = *shared;
    const db_status status =
        // NOLINTNEXTLINE(bugprone-sizeof-expression): the pointer itself
        params->store->set(params->store->context, "group", &shared, sizeof(shared), error);
    if (status != DB_OK) return status;
    // The last to arrive deletes the pointer; rank 0 counts too.
  } else {
    std::shared_ptr<Group>* shared = nullptr;
    uint64_t size = sizeof(shared);  // NOLINT(bugprone-sizeof-expression): the pointer itself
    const db_status status =
        params->store->get(params->store->context, "group", &shared, &size, -1, error);
    if (status != DB_OK) return status;
    made->group = *shared;
    int64_t taken = 0;
    params->store->add(params->store->context, "taken", 1, &taken, error);
    if (taken == params->size - 1) delete shared;
  }
  *result = &made.release()->base;
  return DB_OK;
}

const DistributedBackend kBackend = {sizeof(DistributedBackend),
                                     DB_ABI_MAJOR,
                                     DB_ABI_MINOR,
                                     DOUBLE_NAME,
                                     "0.1.0",
                                     "A test double whose ranks are threads.",
                                     DB_CAP_SPLIT
#if defined(DOUBLE_OF_DEVICES)
                                         | DB_CAP_CUDA_MEMORY
#else
                                         | DB_CAP_HOST_MEMORY
#endif
#if !defined(DOUBLE_CANNOT_ABORT)
                                         | DB_CAP_ABORT
#endif
#if defined(DOUBLE_WRAPS)
                                         | DB_CAP_NEEDS_BASE
#endif
                                     ,
                                     probe,
                                     default_options,
                                     create,
                                     nullptr};

}  // namespace

extern "C" DB_EXPORT const DistributedBackend* coupler_distributed_backend_v1(void) {
  return &kBackend;
}
