#include <utility>

#include "store/store.h"

namespace coupler {
namespace {

class PrefixStore : public Store {
 public:
  PrefixStore(std::shared_ptr<Store> parent, std::string prefix)
      : parent_(std::move(parent)), prefix_(std::move(prefix) + "/") {}

  void set(const std::string& key, const std::string& value) override {
    parent_->set(prefix_ + key, value);
  }
  std::optional<std::string> get(const std::string& key,
                                 std::chrono::nanoseconds timeout) override {
    return parent_->get(prefix_ + key, timeout);
  }
  std::vector<std::optional<std::string>> get_ranks(const std::string& prefix, int count,
                                                    std::chrono::nanoseconds timeout) override {
    return parent_->get_ranks(prefix_ + prefix, count, timeout);
  }
  int64_t add(const std::string& key, int64_t delta) override {
    return parent_->add(prefix_ + key, delta);
  }
  std::shared_ptr<Peers> peers() const override { return parent_->peers(); }
  std::optional<Bytes32> derived_key(std::string_view purpose) const override {
    return parent_->derived_key(purpose);
  }

 private:
  std::shared_ptr<Store> parent_;
  std::string prefix_;
};

}  // namespace

std::shared_ptr<Store> Store::with_prefix(std::shared_ptr<Store> parent, std::string prefix) {
  return std::make_shared<PrefixStore>(std::move(parent), std::move(prefix));
}

}  // namespace coupler
