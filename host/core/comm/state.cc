#include "comm/state.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "base/span.h"
#include "comm/watchdog.h"

namespace coupler::comm {

namespace {

ErrorCode code_of(db_status status) {
  switch (status) {
    case DB_ERR_INVALID_ARGUMENT:
      return ErrorCode::kInvalidArgument;
    case DB_ERR_UNSUPPORTED:
      return ErrorCode::kUnsupported;
    case DB_ERR_TIMEOUT:
      return ErrorCode::kTimeout;
    case DB_ERR_ABORTED:
      return ErrorCode::kAborted;
    case DB_ERR_PEER_LOST:
      return ErrorCode::kPeerLost;
    case DB_ERR_SYSTEM:
    case DB_ERR_NOT_FOUND:
      return ErrorCode::kIo;
    case DB_ERR_UNKNOWN_OPTION:
      return ErrorCode::kConfig;
    case DB_ERR_MISMATCH:
      return ErrorCode::kMismatch;
    default:
      return ErrorCode::kInternal;
  }
}

// Whether the communicator is unusable after this.
bool kills(db_status status, const db_error& error) {
  if ((error.flags & DB_ERROR_COMM_DEAD) != 0) return true;
  switch (status) {
    case DB_ERR_INVALID_ARGUMENT:
    case DB_ERR_UNSUPPORTED:
    case DB_ERR_NO_MEMORY:
      return false;  // nothing was started
    default:
      return true;
  }
}

}  // namespace

std::string hint_for(ErrorCode code) {
  switch (code) {
    case ErrorCode::kTimeout:
      return "look at what the missing ranks do instead; raise backend.timeout if ranks may be "
             "this far apart";
    case ErrorCode::kPeerLost:
      return "look at the output of the lost rank; the survivors cannot continue without it";
    case ErrorCode::kMismatch:
      return "make every rank call the same operations with the same dtype and sizes in the same "
             "order";
    case ErrorCode::kUnsupported:
      return "choose another dtype or reduction, or another backend (coupler plugins lists them)";
    case ErrorCode::kInternal:
      return "report this with the output of coupler env";
    default:
      return {};
  }
}

Error make_error(db_status status, const ErrorBuffer& error, const std::string& context,
                 const std::string& backend) {
  const ErrorCode code = code_of(status);
  std::string text = error.text();
  if (text.empty()) {
    text = fmt::format("status {} without a message", status);
  }
  if (error.value().native_code != 0) text += fmt::format(" (code {})", error.value().native_code);
  return {code,
          fmt::format("{}: {}: {}", context, backend, text),
          {.rank = error.value().failed_rank, .subject = context, .hint = hint_for(code)}};
}

namespace {

// How long after a broken connection the store may take to report which rank was lost.
constexpr auto kNews = std::chrono::milliseconds(100);

int64_t backend_timeout(bool can_abort, std::chrono::nanoseconds timeout) {
  if (can_abort) return timeout.count();
  const std::chrono::nanoseconds margin = timeout / 10 + std::chrono::milliseconds(500);
  return (timeout + margin).count();
}

}  // namespace

CommunicatorState::CommunicatorState(std::string name_in, const std::string& group_in,
                                     std::shared_ptr<RawCommunicator> raw,
                                     std::shared_ptr<store::Store> store_in,
                                     std::chrono::nanoseconds timeout_in,
                                     std::unique_ptr<FlightRecorder> recorder_in,
                                     std::vector<int> world_ranks_in,
                                     std::shared_ptr<const DeviceMemory> device_in)
    : name(std::move(name_in)),
      rank(raw->get()->rank),
      world_size(raw->get()->size),
      group(world_size > 1 ? lasting_name(group_in) : nullptr),
      can_abort(raw->can_abort()),
      timeout(timeout_in),
      operation_timeout_ns(backend_timeout(can_abort, timeout_in)),
      store(std::move(store_in)),
      world_ranks(std::move(world_ranks_in)),
      peers(store ? store->peers() : nullptr),
      backend(std::move(raw)),
      communicator(backend->get()),
      functions(&backend->functions()),
      device(std::move(device_in)),
      on_streams(device != nullptr && device->is_cuda() && backend->takes(DB_MEMORY_CUDA)),
      recorder(std::move(recorder_in)),
      sent(static_cast<size_t>(world_size)),
      received(static_cast<size_t>(world_size)) {
  if (store == nullptr) return;
  notifier = std::make_unique<FailureNotifier>(recorder.get(), store, rank, world_size);
  watchdog = std::make_unique<Watchdog>(*this);
  if (peers) peers->add_activity(this, [this] { return activity(); });
}

CommunicatorState::~CommunicatorState() {
  if (peers) peers->remove_activity(this);
  watchdog.reset();
  for (const auto& operation : parked) functions->release(operation->request);
  if (recorder) recorder->leave();
}

Operation CommunicatorState::begin(const db_op& op) {
  Operation operation{.fingerprint = fingerprint_of(op, world_size)};
  if (is_pairwise(op.kind)) {
    operation.peer = op.root_or_peer;
    const auto peer = static_cast<size_t>(op.root_or_peer);
    operation.sequence = op.kind == DB_SEND ? ++sent[peer] : ++received[peer];
  } else {
    operation.sequence = ++sequence;
    chain = chain_hash(chain, operation.fingerprint);
  }
  if (notifier) announce(operation, &op);
  return operation;
}

Operation CommunicatorState::begin(const Fingerprint& fingerprint) {
  Operation operation{.sequence = ++sequence, .fingerprint = fingerprint};
  chain = chain_hash(chain, fingerprint);
  if (notifier) announce(operation, nullptr);
  return operation;
}

void CommunicatorState::announce(const Operation& operation, const db_op* op) {
  if (!recorder) {
    if (operation.peer < 0) notifier->record(operation.sequence, operation.fingerprint, chain);
    return;
  }
  if (recorder->has_shared_error()) throw end_by(*recorder->shared_error());
  std::optional<Disagreement> other;
  if (operation.peer >= 0) {
    if (operation.peer != rank) {
      other = recorder->enter_pair(operation.peer, operation.sequence, operation.fingerprint);
    }
  } else {
    other = recorder->enter(operation.sequence, operation.fingerprint, chain);
    if (!other && op != nullptr && op->kind == DB_ALL_TO_ALL_V) {
      other = recorder->enter_counts(operation.sequence, op->send_counts, op->recv_counts);
    }
  }
  if (!other) return;
  const char* number = operation.peer >= 0 ? "message" : "operation";
  throw end(Error(ErrorCode::kMismatch,
                  fmt::format("communicator '{}', {} {}: {}", name, number, operation.sequence,
                              describe_disagreement(rank, operation.fingerprint, *other)),
                  {.rank = other->rank, .subject = name, .hint = hint_for(ErrorCode::kMismatch)}));
}

void CommunicatorState::enter_backend(const Operation& operation) {
  current.enter(operation);
  if (watchdog) watchdog->wake_if_asleep();
}

void CommunicatorState::leave_backend() { current.leave(); }

std::string CommunicatorState::activity() const {
  const auto operation = current.of(current.version());
  if (!operation) return {};
  const std::string site = CallSite::last();
  return fmt::format("operation {} ({}) of communicator '{}'{}", operation->sequence,
                     describe(operation->fingerprint), name, site.empty() ? "" : ", at " + site);
}

std::string CommunicatorState::context(const Operation& operation) const {
  std::string text = fmt::format("communicator '{}', ", name);
  if (operation.peer >= 0) {
    return text + fmt::format("message {}: rank {} in {} {} rank {}", operation.sequence, rank,
                              describe(operation.fingerprint),
                              operation.fingerprint.kind() == DB_SEND ? "to" : "from",
                              operation.peer);
  }
  return text + fmt::format("operation {}: rank {} in {}", operation.sequence, rank,
                            describe(operation.fingerprint));
}

Error CommunicatorState::timeout_error(const Operation& operation,
                                       const std::string& backend_text) const {
  int missing = -1;
  std::string absent;
  if (notifier) {
    try {
      absent = notifier->describe_missing(operation.peer >= 0 ? 0 : operation.sequence, &missing);
    } catch (const std::exception& thrown) {
      absent = fmt::format("the missing ranks are unknown: {}", thrown.what());
    }
  }
  if (missing < 0) missing = operation.peer;
  if (absent.empty()) {
    absent = operation.peer >= 0
                 ? fmt::format("rank {} did not answer", operation.peer)
                 : std::string("every rank has started the operation, and none is stopped or gone");
  }
  std::string text = fmt::format("{}: timed out after {:.3g} s; {}", context(operation),
                                 std::chrono::duration<double>(timeout).count(), absent);
  if (!backend_text.empty()) text += fmt::format(" ({})", backend_text);
  return {ErrorCode::kTimeout,
          text,
          {.rank = missing, .subject = name, .hint = hint_for(ErrorCode::kTimeout)}};
}

std::optional<CommunicatorState::LostMember> CommunicatorState::lost_member(
    std::chrono::milliseconds wait) const {
  if (!peers || (wait.count() == 0 && !peers->any_lost())) return std::nullopt;
  const auto loss = peers->await_lost(world_ranks, wait);
  if (!loss) return std::nullopt;
  const auto member = std::find(world_ranks.begin(), world_ranks.end(), loss->rank);
  return LostMember{static_cast<int>(member - world_ranks.begin()), *loss};
}

Error CommunicatorState::peer_error(const Operation& operation, const LostMember& lost) const {
  const bool own = lost.rank == rank;
  return {ErrorCode::kPeerLost,
          fmt::format("{}: {}{}", context(operation),
                      own ? "the other ranks have given up on this one: " : "", lost.loss.text),
          {.rank = lost.rank, .subject = name, .hint = hint_for(ErrorCode::kPeerLost)}};
}

Error CommunicatorState::failed(const Operation& operation, db_status status,
                                const ErrorBuffer& buffer) {
  if (dead.load(std::memory_order_acquire)) return *first_error();
  if (!kills(status, buffer.value())) {
    if (recorder && operation.peer < 0) recorder->refuse(operation.sequence);
    return make_error(status, buffer, context(operation), backend->plugin().name());
  }
  if (status == DB_ERR_TIMEOUT) return end(timeout_error(operation, buffer.text()));
  if (code_of(status) == ErrorCode::kPeerLost || code_of(status) == ErrorCode::kIo) {
    // A connection reports that it broke, not why; the job's store is about to report that.
    if (const auto lost = lost_member(kNews)) {
      const Error found = peer_error(operation, *lost);
      return end(
          Error(found.code(), fmt::format("{} ({})", found.what(), buffer.text()), found.detail()));
    }
  }
  return end(make_error(status, buffer, context(operation), backend->plugin().name()));
}

Error CommunicatorState::end(const Error& own) {
  SharedError shared_error{static_cast<int32_t>(own.code()), rank, own.detail().rank, own.what()};
  if (notifier) {
    try {
      // If another rank was first, this error is likely to be a consequence of its error.
      shared_error = notifier->publish(shared_error);
    } catch (const std::exception& thrown) {
      // If the rank that hosts the store is lost, the others notice that themselves.
      log(lost_member() ? LogLevel::kDebug : LogLevel::kWarning, "comm",
          fmt::format("communicator '{}': cannot report the error to the other ranks: {}", name,
                      thrown.what()));
    }
  }
  if (shared_error.reporter != rank) return end_by(shared_error);
  set_first_error(own);
  return *first_error();
}

Error CommunicatorState::end_by(const SharedError& shared_error) {
  const auto code = static_cast<ErrorCode>(shared_error.code);
  // An error that a rank reports about itself is, for the others, about that rank.
  const int failed_rank = shared_error.failed_rank < 0 || shared_error.failed_rank == rank
                              ? shared_error.reporter
                              : shared_error.failed_rank;
  const bool own = shared_error.reporter == rank;
  // The text includes its hint.
  set_first_error(
      Error(code,
            own ? shared_error.text
                : fmt::format("rank {} reported: {}", shared_error.reporter, shared_error.text),
            {.rank = own ? shared_error.failed_rank : failed_rank, .subject = name, .hint = {}}));
  return *first_error();
}

bool CommunicatorState::set_first_error(const Error& first) {
  {
    const std::lock_guard lock(error_mutex);
    if (error) return false;
    error = first;
  }
  dead.store(true, std::memory_order_release);
  // Even without DB_CAP_ABORT: it may still free threads that wait outside of the library.
  functions->abort(communicator);
  return true;
}

std::optional<Error> CommunicatorState::first_error() const {
  const std::lock_guard lock(error_mutex);
  return error;
}

void CommunicatorState::throw_first_error() const { throw Error(*first_error()); }

void CommunicatorState::add_pending(PendingOperation* operation) {
  operation->start = std::chrono::steady_clock::now();
  {
    const std::lock_guard lock(pending_mutex);
    pending.push_back(operation);
  }
  pending_count.fetch_add(1, std::memory_order_seq_cst);
  if (watchdog) watchdog->wake_if_asleep();
}

void CommunicatorState::remove_pending(PendingOperation* operation) {
  const std::lock_guard lock(pending_mutex);
  const auto found = std::find(pending.begin(), pending.end(), operation);
  if (found == pending.end()) return;
  *found = pending.back();
  pending.pop_back();
  pending_count.fetch_sub(1, std::memory_order_relaxed);
}

void CommunicatorState::park(std::unique_ptr<PendingOperation> operation) {
  const std::lock_guard lock(pending_mutex);
  parked.push_back(std::move(operation));
}

void CommunicatorState::release_finished() {
  while (true) {
    std::unique_ptr<PendingOperation> over;
    ErrorBuffer text;
    db_status status = DB_OK;
    {
      const std::lock_guard lock(pending_mutex);
      if (parked.empty()) return;
      status = functions->test(parked.front()->request, text.get());
      if (status == DB_IN_PROGRESS) return;
      over = std::move(parked.front());
      parked.pop_front();
    }
    remove_pending(over.get());
    functions->release(over->request);
    if (status != DB_OK) static_cast<void>(failed(over->operation, status, text));
  }
}

}  // namespace coupler::comm
