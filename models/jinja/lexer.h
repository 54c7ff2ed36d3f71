// Divides a Jinja template into text and the tokens of its tags, with the rules for white space
// that transformers sets (trim_blocks and lstrip_blocks). A pure function. Does not depend on
// LibTorch.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "jinja/value.h"

namespace coupler::jinja {

struct Token {
  enum class Kind {
    kText,           // outside of tags
    kVariableBegin,  // {{
    kVariableEnd,
    kBlockBegin,  // {%
    kBlockEnd,
    kName,
    kString,
    kNumber,
    kOperator,
    kEnd,  // of the template
  };
  Kind kind = Kind::kEnd;
  std::string text;  // of a string, its value
  size_t line = 1;
  Value number;

  bool is(Kind of, std::string_view with) const { return kind == of && text == with; }
};

// A Problem in a known line.
struct ProblemInLine : Problem {
  ProblemInLine(size_t line_of, const Problem& problem) : Problem(problem), line(line_of) {}
  size_t line;
};

// The last token is kEnd. Throws ProblemInLine.
std::vector<Token> tokens_of(const std::string& source);

}  // namespace coupler::jinja
