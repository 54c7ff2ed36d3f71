// Attention with a cache of keys and values, and what all layers of a forward share. Used by one
// thread.
#pragma once

#include <coupler/language_model.h>

namespace coupler {

struct AttentionPass {
  KeyValueCache* cache = nullptr;  // null: tokens are all there is
  at::Tensor positions;            // [tokens], or [batch, tokens] where rows have fillers
  at::Tensor mask;                 // [batch or 1, 1, tokens, all]; undefined: none is needed
  bool causal = false;             // without a mask: each token sees itself and those before it
};

AttentionPass begin_pass(const at::Tensor& tokens, KeyValueCache* cache);

// [batch, tokens, heads × size] to [batch, heads, tokens, size].
at::Tensor split_heads(const at::Tensor& x, int64_t heads);

// query: [batch, heads, tokens, size]; key and value likewise, of as many heads or of a part of
// them, each for several of the query's. Gives [batch, tokens, heads × size].
at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const AttentionPass& pass, size_t layer);

}  // namespace coupler
