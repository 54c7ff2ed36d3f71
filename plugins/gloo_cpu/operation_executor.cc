#include "gloo_cpu/operation_executor.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "common/op.h"

namespace db::gloo_cpu {
namespace {

constexpr int64_t kCauseWaitNs = 2'000'000'000;
constexpr int64_t kLateWaitNs = 100'000'000;

// The head of the value under "cause"; the message follows.
struct Cause {
  int32_t status = 0;
  int32_t failed_rank = -1;
  int32_t reporter = -1;
};

std::string timeout_key(uint64_t sequence, int32_t rank) {
  return "late/" + std::to_string(sequence) + "/" + std::to_string(rank);
}

bool is_among(const std::vector<int32_t>& ranks, int32_t rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// Removes the ranks in heard from ranks, unless none would be left.
void leave_out(const std::vector<int32_t>& received_from, std::vector<int32_t>* ranks) {
  std::vector<int32_t> left;
  for (const int32_t rank : *ranks)
    if (!is_among(received_from, rank)) left.push_back(rank);
  if (!left.empty()) *ranks = std::move(left);
}

}  // namespace

FailureReporter::FailureReporter(BootstrapStore store, int32_t rank, int32_t size)
    : store_(std::move(store)), rank_(rank), size_(size) {}

Failure FailureReporter::settle(const Failure& seen) const {
  int64_t turn = 0;
  if (!store_.add("failures", 1, &turn).ok()) return seen;
  if (turn == 1) {
    const Cause cause{seen.status, seen.failed_rank, rank_};
    std::string value(reinterpret_cast<const char*>(&cause), sizeof cause);
    // If the store fails now, the others fall back on what they observed themselves.
    (void)store_.set("cause", value + seen.message);
    return seen;
  }
  std::string value;
  if (!store_.get("cause", kCauseWaitNs, &value).ok() || value.size() < sizeof(Cause)) return seen;
  Cause cause;
  std::memcpy(&cause, value.data(), sizeof cause);
  // This rank knows better if others reported it dead.
  if (cause.failed_rank == rank_ && cause.status == DB_ERR_PEER_LOST) return seen;
  Failure agreed = seen;
  agreed.status = cause.status;
  agreed.failed_rank = cause.failed_rank;
  agreed.flags |= DB_ERROR_REMOTE;
  agreed.message =
      value.substr(sizeof cause) + " (first seen by rank " + std::to_string(cause.reporter) + ")";
  return agreed;
}

void FailureReporter::report_timeout(uint64_t sequence) const {
  // Only improves the other ranks' messages, so a failure is ignored.
  (void)store_.set(timeout_key(sequence, rank_), "1");
}

std::vector<int32_t> FailureReporter::ranks_without_timeout(uint64_t sequence) const {
  const int64_t until = now_ns() + kLateWaitNs;
  std::vector<int32_t> ranks;
  std::string value;
  for (int32_t peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const Failure failure =
        store_.get(timeout_key(sequence, peer), std::max<int64_t>(until - now_ns(), 0), &value);
    if (!failure.ok()) ranks.push_back(peer);
  }
  return ranks;
}

OperationExecutor::OperationExecutor(int32_t rank, int32_t size, std::unique_ptr<FullMesh> mesh,
                                     const BootstrapStore& store, const CollectiveLimits& limits)
    : rank_(rank),
      size_(size),
      limits_(limits),
      mesh_(std::move(mesh)),
      reporter_(store, rank, size),
      engine_(mesh_ == nullptr ? nullptr
                               : std::make_unique<ConnectionEngine>(rank, mesh_->connections(),
                                                                    limits.chunk_bytes)),
      collectives_(rank, size, engine_.get(), limits),
      sent_(static_cast<size_t>(size)),
      received_(static_cast<size_t>(size)) {}

Failure OperationExecutor::execute(Op& op) {
  try {
    if (is_point_to_point(op.kind)) return start_message(op);
    return conclude(op, collectives_.run(op));
  } catch (const std::exception&) {
    return conclude(op, failure_of_exception(op));
  }
}

Failure OperationExecutor::start_message(Op& op) {
  Message* const message = messages_.take();
  op.native = message;
  const int32_t peer = op.root_or_peer;
  const bool sends = op.kind == DB_SEND;
  Header header = make_header(op, size_);
  header.bytes = op.count * op.element;
  header.sequence = ++(sends ? sent_ : received_)[static_cast<size_t>(peer)];
  if (sends) {
    engine_->send(peer, header, op.send, &message->group, &message->out);
  } else {
    engine_->receive(peer, header, op.recv, &message->group, &message->in);
  }
  if (!op.blocking) return poll(op);
  return finish_message(op, engine_->wait(message->group, op.deadline_ns, limits_.spin_ns));
}

Failure OperationExecutor::poll(Op& op) {
  const auto* message = static_cast<const Message*>(op.native);
  bool moved = false;
  Failure result;
  if (message->group.pending > 0) result = engine_->progress(&moved);
  if (result.ok() && message->group.pending > 0) {
    if (now_ns() < op.deadline_ns) return {DB_IN_PROGRESS};
    result = Failure::make(DB_ERR_TIMEOUT, "", DB_ERROR_COMM_DEAD, op.root_or_peer);
  }
  return finish_message(op, std::move(result));
}

Failure OperationExecutor::finish_message(Op& op, Failure result) {
  if (result.ok()) messages_.give_back(static_cast<Message*>(op.native));
  op.native = nullptr;
  return conclude(op, std::move(result));
}

void OperationExecutor::cancel(Op& op) {
  // A message that may be partly sent cannot be taken back, so the connections go with it. The
  // queue cancels only operations of a communicator that has failed.
  op.native = nullptr;
  abort();
}

void OperationExecutor::abort() {
  if (engine_ != nullptr) engine_->abort();
}

Failure OperationExecutor::conclude(const Op& op, Failure result) {
  if (!result.dead() || engine_ == nullptr) return result;
  const bool aborted = result.status == DB_ERR_ABORTED;
  if (result.status == DB_ERR_TIMEOUT) explain_timeout(op, &result);
  if (result.status == DB_ERR_PEER_LOST) result.message = describe(op) + ": " + result.message;
  // Store the cause before the connections close, because that is what the other ranks notice.
  if (!aborted) result = reporter_.settle(result);
  engine_->abort();
  result.message = "gloo_cpu, rank " + std::to_string(rank_) + ": " + result.message;
  return result;
}

void OperationExecutor::explain_timeout(const Op& op, Failure* failure) const {
  // A rank that sent nothing at all in the first round never arrived. In later rounds between all
  // ranks, all have arrived and one is stuck: the ranks find it by reporting that they wait as
  // well. They do so, too, in libgloo's algorithms and in later circulant rounds, which make a rank
  // wait for one that is itself waiting; there, a rank that is known to have started may have done
  // so later, and so time out later.
  std::vector<int32_t> missing;
  if (is_point_to_point(op.kind)) {
    missing = {op.root_or_peer};
  } else {
    if (collectives_.in_first_round()) missing = engine_->silent();
    reporter_.report_timeout(collectives_.sequence());
    if (missing.empty()) {
      missing = reporter_.ranks_without_timeout(collectives_.sequence());
      leave_out(collectives_.received_from(), &missing);
    }
  }
  if (missing.empty() && failure->failed_rank >= 0) missing = {failure->failed_rank};
  std::string names;
  for (const int32_t rank : missing) names += (names.empty() ? "" : ", ") + std::to_string(rank);
  // Prefer the rank that this rank waited for, if it is among them.
  if (!missing.empty() && !is_among(missing, failure->failed_rank))
    failure->failed_rank = missing.front();
  failure->message = describe(op) + " did not complete within " +
                     std::to_string(op.timeout_ns / 1000000) + " ms: rank" +
                     (missing.size() > 1 ? "s " : " ") + (names.empty() ? "?" : names) +
                     " did not take part in time";
}

}  // namespace db::gloo_cpu
