#include "strategy/comm_hook.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "comm/flight_recorder.h"
#include "tensors/tensor_ops.h"
#include "tensors/tensor_text.h"

namespace coupler {

GradientFuture::GradientFuture(at::Tensor value)
    : chain_(std::make_shared<strategy::GradientChain>(nullptr, std::move(value))) {}

GradientFuture GradientFuture::add(std::function<GradientFuture(at::Tensor)> next,
                                   bool communicates) const {
  chain_->add(std::move(next), communicates);
  return *this;
}

at::Tensor GradientFuture::wait() const {
  chain_->finish();
  return chain_->value();
}

}  // namespace coupler

namespace coupler::strategy {
namespace {

thread_local bool local_step_runs = false;

// One collective, which started when this was made.
class CollectiveWork final : public GradientWork {
 public:
  CollectiveWork(comm::Communicator& comm, const db_op& op, at::Tensor sent, at::Tensor received)
      : sent_(std::move(sent)), received_(std::move(received)), work_(comm.submit(op)) {}

  bool more() const override { return false; }
  void step() override {}
  bool done() override { return work_.done(); }
  void finish() override { work_.wait(); }

 private:
  const at::Tensor sent_, received_;  // alive until the collective is complete
  comm::Work work_;
};

}  // namespace

bool GradientChain::in_local_step() { return local_step_runs; }

bool GradientChain::more() const {
  return (work_ != nullptr && work_->more()) ||
         std::any_of(next_.begin(), next_.end(),
                     [](const Next& next) { return next.communicates; });
}

// Up to and including the next step that may start collectives.
void GradientChain::step() {
  if (work_ != nullptr && work_->more()) {
    work_->step();
    return;
  }
  for (bool started = false; !started && !next_.empty();) {
    started = next_.front().communicates;
    run_next();
  }
}

void GradientChain::finish() {
  while (!next_.empty()) run_next();
  if (work_ == nullptr) return;
  work_->finish();
  work_.reset();
}

void GradientChain::run_next() {
  if (work_ != nullptr) work_->finish();
  work_.reset();
  const Next next = std::move(next_.front());
  next_.pop_front();
  const bool outer = std::exchange(local_step_runs, local_step_runs || !next.communicates);
  std::optional<GradientFuture> result;
  try {
    result = next.run(std::move(value_));
  } catch (...) {
    local_step_runs = outer;
    throw;
  }
  local_step_runs = outer;
  GradientChain& made = *result->chain();
  if (&made == this) {
    fail_usage("a step of a GradientFuture returned that same future", "then",
               "return a tensor or the future of another collective");
  }
  work_ = std::move(made.work_);
  value_ = std::move(made.value_);
  next_.insert(next_.begin(), std::make_move_iterator(made.next_.begin()),
               std::make_move_iterator(made.next_.end()));
  made.next_.clear();
}

void HookedBucket::require_open(const char* what) const {
  if (open_ && !GradientChain::in_local_step()) return;
  fail_usage(
      fmt::format("{} of bucket {} of '{}' was called {}", what, content_.index, content_.model,
                  open_ ? "by a step that returns a tensor" : "while no hook reduces it"),
      what,
      open_ ? "ranks could reach it in different orders: return the future of the collective"
            : "call it in the hook or in a step added by then()");
}

void HookedBucket::require_rows(const at::Tensor& tensor, const char* what) const {
  if (tensor.defined() && tensor.dim() > 0 && tensor.size(0) == comm_->size()) return;
  fail_argument(fmt::format("{} got {}, but needs one row for each of {} ranks", what,
                            tensors::text_with_device(tensor), comm_->size()),
                what);
}

GradientFuture HookedBucket::start(const char* what, db_op op, const at::Tensor& sent,
                                   at::Tensor received) {
  if (received.numel() == 0 && sent.numel() == 0) return received;
  if (!comm_->supports(op)) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("the backend '{}' does not support {} of {}", comm_->backend(), what,
                            comm::dtype_name(op.dtype)),
                {.subject = what,
                 .hint = "convert the tensor to another dtype; `coupler plugins --matrix` shows "
                         "what each backend supports"});
  }
  auto work = std::make_shared<CollectiveWork>(*comm_, op, sent, received);
  return GradientFuture(std::make_shared<GradientChain>(std::move(work), std::move(received)));
}

GradientFuture HookedBucket::average() {
  require_open("average");
  if (std::exchange(averaged_, true)) {
    fail_usage("average() was called twice for one bucket", "average",
               "call it once: it reduces buffer() itself");
  }
  content_.buffer.mul_(1.0 / comm_->size());
  auto work = standard_();
  work->step();
  return GradientFuture(std::make_shared<GradientChain>(std::move(work), content_.result));
}

GradientFuture HookedBucket::all_reduce(const at::Tensor& tensor, ReduceOp reduction) {
  require_open("all_reduce");
  return start("all_reduce", tensors::all_reduce_op(tensor, tensors::to_db_reduce(reduction)),
               tensor, tensor);
}

GradientFuture HookedBucket::broadcast(const at::Tensor& tensor, int from) {
  require_open("broadcast");
  return start("broadcast", tensors::broadcast_op(tensor, from), tensor, tensor);
}

GradientFuture HookedBucket::all_gather(const at::Tensor& tensor) {
  require_open("all_gather");
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), comm_->size());
  at::Tensor result = at::empty(sizes, tensor.options());
  const db_op op = tensors::all_gather_op(tensor, result);
  return start("all_gather", op, tensor, std::move(result));
}

GradientFuture HookedBucket::reduce_scatter(const at::Tensor& tensor, ReduceOp reduction) {
  require_open("reduce_scatter");
  const bool divided = !content_.shard_sizes.empty();
  if (!divided) {
    require_rows(tensor, "reduce_scatter");
  } else if (tensor.sizes() != content_.buffer.sizes()) {
    fail_argument(fmt::format("reduce_scatter of a sharded bucket got {}, but needs {} elements",
                              tensors::text_with_device(tensor), content_.buffer.numel()),
                  "reduce_scatter");
  }
  at::Tensor result = divided ? at::empty(content_.result.sizes(), tensor.options())
                              : at::empty(tensor.sizes().slice(1), tensor.options());
  db_op op = tensors::all_reduce_op(tensor, tensors::to_db_reduce(reduction));
  op.kind = divided ? DB_REDUCE_SCATTER_V : DB_REDUCE_SCATTER;
  op.recv = result.mutable_data_ptr();
  op.count = static_cast<uint64_t>(result.numel());
  if (divided) {
    counts_.assign(content_.shard_sizes.begin(), content_.shard_sizes.end());
    op.recv_counts = counts_.data();
    op.count = 0;
  }
  return start("reduce_scatter", op, tensor, std::move(result));
}

GradientFuture HookedBucket::all_to_all(const at::Tensor& tensor) {
  require_open("all_to_all");
  require_rows(tensor, "all_to_all");
  at::Tensor result = at::empty_like(tensor);
  db_op op = tensors::all_gather_op(tensor, result);
  op.kind = DB_ALL_TO_ALL;
  op.count = static_cast<uint64_t>(tensor.numel() / comm_->size());
  return start("all_to_all", op, tensor, std::move(result));
}

HookWork::HookWork(std::shared_ptr<const NamedHook> hook, std::shared_ptr<HookedBucket> bucket)
    : hook_(std::move(hook)), bucket_(std::move(bucket)) {
  bucket_->open_ = true;
  bucket_->averaged_ = false;
}

void HookWork::fail(ErrorCode code, const std::string& what, ErrorDetail detail) const {
  const BucketContent& content = bucket_->content_;
  detail.hint.clear();  // it is in what
  // Every rank has or gets this error without our help.
  if (code == ErrorCode::kAborted || code == ErrorCode::kPeerLost || code == ErrorCode::kTimeout ||
      code == ErrorCode::kMismatch) {
    throw Error(code,
                fmt::format("comm hook '{}', bucket {} of the model '{}': {}", hook_->name,
                            content.index, content.model, what),
                std::move(detail));
  }
  const std::string text =
      fmt::format("the comm hook '{}' failed on rank {}, in bucket {} of the model '{}': {}",
                  hook_->name, bucket_->comm_->rank(), content.index, content.model, what);
  bucket_->comm_->abort(text);
  for (const auto& related : content.related) related->abort(text);
  if (detail.subject.empty()) detail.subject = hook_->name;
  throw Error(code, text, std::move(detail));
}

template <class Action>
void HookWork::guarded(const Action& action) const {
  try {
    action();
  } catch (const Error& error) {
    fail(error.code(), error.what(), error.detail());
  } catch (const c10::Error& error) {
    fail(ErrorCode::kInvalidArgument, error.what_without_backtrace(), {});
  } catch (const std::exception& error) {
    fail(ErrorCode::kInvalidArgument, error.what(), {});
  } catch (...) {
    fail(ErrorCode::kInvalidArgument, "it threw something that is not a std::exception", {});
  }
}

void HookWork::step() {
  guarded([&] {
    if (future_) {
      future_->chain()->step();
    } else {
      future_ = hook_->function(*bucket_);
    }
  });
}

void HookWork::finish() {
  guarded([&] {
    if (!future_) future_ = hook_->function(*bucket_);
    future_->chain()->finish();
    take(future_->chain()->value());
  });
  bucket_->open_ = false;
}

void HookWork::take(const at::Tensor& value) const {
  const BucketContent& content = bucket_->content_;
  const at::Tensor& result = content.result;
  const bool fits = value.defined() && value.sizes() == result.sizes() &&
                    value.scalar_type() == result.scalar_type() &&
                    value.device() == result.device() && value.layout() == at::kStrided;
  if (!fits) {
    fail_argument(fmt::format("it returned {}, but the reduced gradients are {}",
                              tensors::text_with_device(value), tensors::text_with_device(result)),
                  hook_->name,
                  "return a tensor of the same sizes and dtype, or the bucket's own buffer()");
  }
  if (value.data_ptr() != result.data_ptr()) result.copy_(value);
  for (const at::Tensor& part : content.padding) part.zero_();
}

}  // namespace coupler::strategy
