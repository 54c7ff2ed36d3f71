// What the parsers of expressions and of statements share. Used by one thread. Does not depend on
// LibTorch.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/lexer.h"
#include "jinja/template.h"

namespace coupler::jinja {

// The tokens of a template, read from the front.
class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& now() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool sees(std::string_view text, Token::Kind kind = Token::Kind::kOperator) const {
    return now().is(kind, text);
  }
  bool sees_name(std::string_view name) const { return sees(name, Token::Kind::kName); }
  bool skip(std::string_view text, Token::Kind kind = Token::Kind::kOperator);
  bool skip_name(std::string_view name) { return skip(name, Token::Kind::kName); }
  // Throw ProblemInLine if something else is there.
  void expect(std::string_view text, Token::Kind kind = Token::Kind::kOperator);
  std::string expect_name();
  [[noreturn]] void refuse(const std::string& message, bool unsupported = false) const;

  // Counts how deeply expressions and statements are nested, and refuses more than 50.
  class Nested {
   public:
    explicit Nested(TokenStream& stream);
    ~Nested() { --stream_.depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    TokenStream& stream_;
  };

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0, depth_ = 0;
};

// conditional: whether `a if b else c` is one; a loop's iterable is not.
Expression parse_expression(TokenStream& stream, bool conditional = true);
// One or more expressions, divided by commas, as a tuple; or one alone.
Expression parse_tuple(TokenStream& stream, bool conditional = true);
Statement parse_template(TokenStream& stream);

struct ParsedArguments {
  std::vector<Expression> positional;
  std::vector<std::pair<std::string, Expression>> named;
  Arguments evaluated(Rendering& rendering) const;
};
// After the opening parenthesis, up to the closing one.
ParsedArguments parse_arguments(TokenStream& stream);

}  // namespace coupler::jinja
