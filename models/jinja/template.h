// Template: the part of Jinja that chat templates use, read into functions that compute it.
// Constructs outside of that part are refused when it is read. Immutable; any thread. Does not
// depend on LibTorch.
//
// Supported: text, expressions, if, for, set, macro, break, continue, raw, generation, filter
// expressions and tests of jinja/functions.h. Undefined variables, scopes and white space are as
// with transformers' environment. A template that computes too much is stopped (Budget).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "jinja/lexer.h"
#include "jinja/value.h"

namespace coupler::jinja {

struct Rendering;  // the state of one

enum class Flow { kOn, kBreak, kContinue };
using Expression = std::function<Value(Rendering& rendering)>;
using Statement = std::function<Flow(Rendering& rendering)>;

class Template {
 public:
  // Throws ProblemInLine.
  explicit Template(const std::string& source);

  using Variables = std::vector<std::pair<std::string, Value>>;
  // Throws ProblemInLine if the template raises an exception or cannot go on.
  std::string render(const Variables& variables) const;

 private:
  std::shared_ptr<const Statement> body_;
};

}  // namespace coupler::jinja
