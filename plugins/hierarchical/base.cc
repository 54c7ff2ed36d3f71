#include "hierarchical/base.h"

#include <algorithm>

namespace db::hierarchical {
namespace {

constexpr size_t kListed = 8;  // ranks of a base in a message

// "; its ranks 0, 1 are the ranks 2, 3 here", unless they have the same numbers.
std::string names_of(const std::vector<int32_t>& ranks) {
  bool same = true;
  for (size_t i = 0; i < ranks.size(); ++i) same = same && ranks[i] == static_cast<int32_t>(i);
  if (same) return "";
  const bool cut = ranks.size() > kListed;
  std::string there, here;
  for (size_t i = 0; i < std::min(ranks.size(), kListed); ++i) {
    there += (i == 0 ? "" : ", ") + std::to_string(i);
    here += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return "; its ranks " + there + (cut ? "…" : "") + " are the ranks " + here + (cut ? "…" : "") +
         " here";
}

}  // namespace

Pending& Pending::operator=(Pending&& other) noexcept {
  if (this != &other) {
    release();
    base_ = std::exchange(other.base_, nullptr);
    request_ = std::exchange(other.request_, nullptr);
  }
  return *this;
}

void Pending::release() {
  if (request_ != nullptr) base_->get()->functions->release(std::exchange(request_, nullptr));
}

Failure Pending::wait() {
  if (request_ == nullptr) return {};
  HostError error;
  const db_status status = base_->get()->functions->wait_host(request_, -1, &error.error);
  Failure failure = status < 0 ? base_->translate(status, error) : Failure{};
  release();
  return failure;
}

Failure Pending::test() {
  if (request_ == nullptr) return {};
  HostError error;
  const db_status status = base_->get()->functions->test(request_, &error.error);
  if (status == DB_IN_PROGRESS) return Failure::make(DB_IN_PROGRESS, "");
  Failure failure = status < 0 ? base_->translate(status, error) : Failure{};
  release();
  return failure;
}

Base::Base(std::string role, db_communicator* communicator, std::vector<int32_t> ranks, bool owned)
    : role_(std::move(role)),
      communicator_(communicator),
      ranks_(std::move(ranks)),
      owned_(owned) {}

Base::~Base() {
  if (owned_) communicator_->functions->destroy(communicator_);
}

Failure Base::start(db_op op, int64_t deadline_ns, bool blocking, Pending* pending) const {
  op.struct_size = sizeof op;
  op.memory = DB_MEMORY_HOST;
  op.flags = blocking ? uint64_t{DB_OP_BLOCKING} : 0;
  // A base names the deadline that passed; 0 would be its default.
  op.timeout_ns = std::max<int64_t>(deadline_ns - now_ns(), 1);
  db_request* request = nullptr;
  HostError error;
  const db_status status =
      communicator_->functions->submit(communicator_, &op, &request, &error.error);
  if (status < 0) return translate(status, error);
  *pending = Pending(this, request);
  return {};
}

Failure Base::exchange(db_kind kind, db_dtype dtype, const void* send, void* recv, uint64_t count,
                       int64_t deadline_ns) const {
  db_op op{};
  op.kind = kind;
  op.dtype = dtype;
  op.send = send;
  op.recv = recv;
  op.count = count;
  Pending pending;
  Failure failure = start(op, deadline_ns, true, &pending);
  return failure.ok() ? pending.wait() : failure;
}

bool Base::supports(db_op op) const {
  op.struct_size = sizeof op;
  op.memory = DB_MEMORY_HOST;
  int32_t score = 0;
  return communicator_->functions->supports(communicator_, &op, &score) == DB_OK && score > 0;
}

const db_peer_memory* Base::peer_memory() const {
  const db_communicator_functions* const functions = communicator_->functions;
  if (!DB_HAS(functions, db_communicator_functions, get_extension) ||
      functions->get_extension == nullptr)
    return nullptr;
  return static_cast<const db_peer_memory*>(
      functions->get_extension(communicator_, DB_PEER_MEMORY));
}

std::shared_ptr<void> Base::allocate(uint64_t bytes) const {
  const db_peer_memory* const extension = peer_memory();
  if (extension == nullptr) return nullptr;
  void *memory = nullptr, *handle = nullptr;
  HostError error;
  // Whoever asks has memory of its own for this case.
  if (extension->allocate(communicator_, bytes, &memory, &handle, &error.error) != DB_OK)
    return nullptr;
  return {memory, [release = extension->release, handle](void*) { release(handle); }};
}

Failure Base::translate(db_status status, const HostError& error) const {
  Failure failure = error.failure(status, "its base \"" + role_ + "\"");
  failure.flags = error.error.flags;
  failure.message += names_of(ranks_);
  const int32_t at = error.error.failed_rank;
  failure.failed_rank =
      at >= 0 && static_cast<size_t>(at) < ranks_.size() ? ranks_[static_cast<size_t>(at)] : -1;
  return failure;
}

}  // namespace db::hierarchical
