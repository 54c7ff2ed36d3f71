// What runs a program's comm hooks: GradientChain is what a GradientFuture refers to, HookedBucket
// the bucket that a hook gets, HookWork one call of a hook with the steps it has added. Used by the
// thread that runs backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/comm_hook.h>
#include <coupler/error.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "strategy/gradient_work.h"

namespace coupler::strategy {

struct NamedHook {
  std::string name;
  CommHook function;
};

class GradientChain final : public GradientWork {
 public:
  // value: that of the work once it is finished. work: null for a value that is there.
  GradientChain(std::shared_ptr<GradientWork> work, at::Tensor value)
      : work_(std::move(work)), value_(std::move(value)) {}

  void add(std::function<GradientFuture(at::Tensor)> next, bool communicates) {
    next_.push_back({std::move(next), communicates});
  }
  const at::Tensor& value() const { return value_; }  // once finished

  bool more() const override;
  void step() override;
  bool done() override { return !more() && (work_ == nullptr || work_->done()); }
  void finish() override;

  // Whether the calling thread is in a step that must not communicate.
  static bool in_local_step();

 private:
  struct Next {
    std::function<GradientFuture(at::Tensor)> run;
    bool communicates = false;
  };
  void run_next();

  std::shared_ptr<GradientWork> work_;  // null: value_ is there
  at::Tensor value_;
  std::deque<Next> next_;
};

// A bucket apart from its communication.
struct BucketContent {
  std::string model;  // its type, for messages
  size_t index = 0;
  bool last = false;
  at::Tensor buffer;
  at::Tensor result;  // what a hook's value is copied to: buffer, or this rank's shard
  std::vector<std::string> names = {};
  std::vector<at::Tensor> parameters = {}, gradients = {};
  std::vector<int64_t> shard_sizes = {};
  // Further communicators of the same model, which end with the bucket's if a hook fails.
  std::vector<std::shared_ptr<comm::Communicator>> related = {};
  std::vector<at::Tensor> padding = {};  // parts of result that belong to no parameter: kept zero
};

class HookedBucket final : public GradientBucket {
 public:
  // standard: makes the work that sums buffer over ranks, into result; that may change buffer.
  HookedBucket(BucketContent content, std::shared_ptr<comm::Communicator> comm,
               std::function<std::shared_ptr<GradientWork>()> standard)
      : content_(std::move(content)), comm_(std::move(comm)), standard_(std::move(standard)) {}

  size_t index() const override { return content_.index; }
  bool is_last() const override { return content_.last; }
  int rank() const override { return comm_->rank(); }
  int world_size() const override { return comm_->size(); }
  const at::Tensor& buffer() const override { return content_.buffer; }
  const std::vector<std::string>& names() const override { return content_.names; }
  const std::vector<at::Tensor>& parameters() const override { return content_.parameters; }
  const std::vector<at::Tensor>& gradients() const override { return content_.gradients; }
  const std::vector<int64_t>& shard_sizes() const override { return content_.shard_sizes; }
  GradientFuture average() override;
  GradientFuture all_reduce(const at::Tensor& tensor, ReduceOp reduction) override;
  GradientFuture broadcast(const at::Tensor& tensor, int from) override;
  GradientFuture all_gather(const at::Tensor& tensor) override;
  GradientFuture reduce_scatter(const at::Tensor& tensor, ReduceOp reduction) override;
  GradientFuture all_to_all(const at::Tensor& tensor) override;

 private:
  friend class HookWork;
  void require_open(const char* what) const;
  void require_rows(const at::Tensor& tensor, const char* what) const;
  GradientFuture start(const char* what, db_op op, const at::Tensor& sent, at::Tensor received);

  const BucketContent content_;
  const std::shared_ptr<comm::Communicator> comm_;
  const std::function<std::shared_ptr<GradientWork>()> standard_;
  std::vector<uint64_t> counts_;  // of a collective that is divided by shard_sizes
  bool open_ = false;             // a hook reduces it now
  bool averaged_ = false;         // in this run
};

class HookWork final : public GradientWork {
 public:
  // The first step calls the hook. If the hook or a step fails, every rank's operations on comm
  // fail with that error.
  HookWork(std::shared_ptr<const NamedHook> hook, std::shared_ptr<HookedBucket> bucket);
  ~HookWork() override { bucket_->open_ = false; }

  bool more() const override { return !future_ || future_->chain()->more(); }
  void step() override;
  bool done() override { return !more() && future_->chain()->done(); }
  void finish() override;

 private:
  template <class Action>
  void guarded(const Action& action) const;
  [[noreturn]] void fail(ErrorCode code, const std::string& what, ErrorDetail detail) const;
  void take(const at::Tensor& value) const;

  const std::shared_ptr<const NamedHook> hook_;
  const std::shared_ptr<HookedBucket> bucket_;
  std::optional<GradientFuture> future_;
};

}  // namespace coupler::strategy
