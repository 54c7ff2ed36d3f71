// Dropout of unmodified modules on a part of the tokens: with sequences divided over the ranks of a
// tensor group, each rank draws the mask of all tokens, as one process would, and takes its part.
// So ranks drop different tokens' values, and their generators stay alike. Dropout of divided
// values (divided_values.h) comes here, too. [any-thread]; what is divided is the calling thread's.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <memory>

namespace coupler::tensors {

// How a part of the tokens is recognized, and which one it is: a tensor of three dimensions,
// [batch, tokens, features] or [tokens, batch, features], with as many tokens. All have more.
struct PartOfTokens {
  int64_t tokens = 0;
  int64_t dim = 1;  // of the tokens
  int rank = 0, ranks = 1;
  bool operator==(const PartOfTokens&) const = default;
};

// From now on, such tensors are parts. Null: no tensor is. Returns what was set before.
std::shared_ptr<const PartOfTokens> set_part_of_tokens(std::shared_ptr<const PartOfTokens> part);
std::shared_ptr<const PartOfTokens> part_of_tokens();

// Whether this is dropout while the calling thread has a part of the tokens or divided values.
bool is_replaced_dropout(const c10::OperatorHandle& op);

// While it lives, the calling thread's tokens are divided as they were when this part was taken.
class PartOfTokensScope {
 public:
  explicit PartOfTokensScope(std::shared_ptr<const PartOfTokens> part);
  ~PartOfTokensScope();
  PartOfTokensScope(const PartOfTokensScope&) = delete;
  PartOfTokensScope& operator=(const PartOfTokensScope&) = delete;

 private:
  std::shared_ptr<const PartOfTokens> before_;
};

}  // namespace coupler::tensors
