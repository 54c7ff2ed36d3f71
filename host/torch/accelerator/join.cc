// How prepared data loaders communicate with other ranks, and join_uneven_inputs.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <coupler/accelerator.h>
#include <coupler/error.h>

#include <algorithm>
#include <utility>

#include "accelerator/accelerator_impl.h"
#include "tensors/tensor_ops.h"

namespace coupler {
namespace {

// Uses the Accelerator's communicator. The thread that runs the loop issues the collectives in the
// same order on every rank. A loader may outlive the Accelerator, but must not be used then.
class CommunicatorPeers : public detail::LoaderPeers {
 public:
  explicit CommunicatorPeers(std::weak_ptr<Communicator> comm) : comm_(std::move(comm)) {}

  bool any(bool mine) override { return all_reduce_number(comm(), mine ? 1 : 0, DB_MAX) != 0; }

  std::vector<int64_t> all(int64_t mine) override {
    Communicator& communicator = comm();
    std::vector<int64_t> result(static_cast<size_t>(communicator.size()));
    const at::Tensor own = at::full({1}, mine, at::kLong);
    const at::Tensor gathered = at::empty({communicator.size()}, at::kLong);
    communicator.run(all_gather_op(own, gathered));
    std::copy_n(gathered.const_data_ptr<int64_t>(), result.size(), result.begin());
    return result;
  }

  // Sent as bytes, so that types unknown to backends work, too.
  void broadcast(const at::Tensor& tensor) override {
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    comm().run(broadcast_op(at::from_blob(tensor.data_ptr(), {bytes}, at::kByte), 0));
  }

 private:
  Communicator& comm() const {
    const auto comm = comm_.lock();
    if (comm == nullptr)
      throw Error(ErrorCode::kUsage, "a data loader is used after its Accelerator was destroyed",
                  {.subject = "data loader",
                   .hint = "keep the Accelerator alive while its loaders are in use"});
    return *comm;
  }

  std::weak_ptr<Communicator> comm_;
};

using Loaders = std::vector<std::shared_ptr<detail::LoaderView>>;

void leave(const Loaders& joined) {
  for (const auto& loader : joined) loader->join(false, std::nullopt);
}

}  // namespace

std::shared_ptr<detail::LoaderPeers> Accelerator::loader_peers() const {
  if (world() == 1) return nullptr;
  return std::make_shared<CommunicatorPeers>(impl_->comm);
}

SyncScope Accelerator::begin_join(std::shared_ptr<detail::LoaderView> only,
                                  std::optional<bool> even_batches) {
  Loaders joined;
  try {
    for (const auto& weak : impl_->loaders) {
      auto loader = weak.lock();
      if (loader == nullptr || (only != nullptr && loader != only)) continue;
      loader->join(true, even_batches);
      joined.push_back(std::move(loader));
    }
  } catch (...) {
    leave(joined);
    throw;
  }
  if (only != nullptr && joined.empty())
    throw Error(ErrorCode::kUsage, "join_uneven_inputs: the data loader was not prepared",
                {.subject = "data loader", .hint = "pass it to accelerator.prepare first"});
  return SyncScope([joined = std::move(joined)] { leave(joined); });
}

}  // namespace coupler
