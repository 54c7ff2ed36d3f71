// Attention with a key-value cache, and the state that all layers of a forward pass share. Used by
// one thread.
#pragma once

#include <coupler/language_model.h>

namespace coupler {

struct AttentionPass {
  KeyValueCache* cache = nullptr;  // null: nothing is cached
  at::Tensor positions;            // [tokens], or [batch, tokens] if rows are padded
  at::Tensor mask;                 // [batch or 1, 1, tokens, all]; undefined: none is needed
  bool causal = false;             // without a mask: tokens attend to themselves and earlier ones
};

AttentionPass begin_pass(const at::Tensor& tokens, KeyValueCache* cache);

// [batch, tokens, heads × size] to [batch, heads, tokens, size].
at::Tensor split_heads(const at::Tensor& x, int64_t heads);

// query: [batch, heads, tokens, size]; key and value likewise, with as many heads or fewer, each
// shared by several query heads. Returns [batch, tokens, heads × size].
at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const AttentionPass& pass, size_t layer);

}  // namespace coupler
