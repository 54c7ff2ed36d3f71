// Expressions, by Jinja's precedence: or, and, not, comparisons, + and -, ~, * / // %, **, signs,
// then attributes, elements, calls, filters and tests.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "jinja/functions.h"
#include "jinja/parser.h"
#include "jinja/rendering.h"

namespace coupler::jinja {
namespace {

using Kind = Token::Kind;

Expression constant(Value value) {
  return [value = std::move(value)](Rendering&) { return value; };
}

int64_t whole_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result))
      throw Problem("a number is too large");
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base))
      throw Problem("a number is too large");
  }
  return result;
}

Value whole_arithmetic(const std::string& sign, int64_t a, int64_t b) {
  int64_t result = 0;
  bool over = false;
  if (sign == "+") {
    over = __builtin_add_overflow(a, b, &result);
  } else if (sign == "-") {
    over = __builtin_sub_overflow(a, b, &result);
  } else if (sign == "*") {
    over = __builtin_mul_overflow(a, b, &result);
  } else if (sign == "**") {
    if (b < 0) return std::pow(static_cast<double>(a), static_cast<double>(b));
    return whole_power(a, b);
  } else {
    if (b == 0) throw Problem("it divides by 0");
    if (sign == "/") return static_cast<double>(a) / static_cast<double>(b);
    if (b == -1) {
      if (sign == "%") return int64_t{0};
      over = __builtin_sub_overflow(int64_t{0}, a, &result);
    } else {
      // Rounded down, as in Python.
      const bool down = a % b != 0 && (a < 0) != (b < 0);
      result = sign == "//" ? a / b - (down ? 1 : 0) : a % b + (down ? b : 0);
    }
  }
  if (over) throw Problem("a number is too large");
  return result;
}

Value arithmetic(const std::string& sign, const Value& a, const Value& b, Budget& budget) {
  if (!a.is_number() || !b.is_number()) {
    if (sign == "+") return joined(a, b, budget);
    const bool text = a.items() != nullptr || a.as<std::string>() != nullptr;
    const bool other = b.items() != nullptr || b.as<std::string>() != nullptr;
    if (sign == "*" && text && !b.as<double>()) return repeated(a, b.integer(), budget);
    if (sign == "*" && other && !a.as<double>()) return repeated(b, a.integer(), budget);
    if (sign == "%" && a.as<std::string>()) throw Problem("formatting by % is not supported", true);
    throw Problem(fmt::format("it computes {} {} {}", a.type(), sign, b.type()));
  }
  if (!a.as<double>() && !b.as<double>()) return whole_arithmetic(sign, a.integer(), b.integer());
  const double x = a.number(), y = b.number();
  if (sign == "+") return x + y;
  if (sign == "-") return x - y;
  if (sign == "*") return x * y;
  if (sign == "**") return std::pow(x, y);
  if (y == 0) throw Problem("it divides by 0");
  if (sign == "/") return x / y;
  if (sign == "//") return std::floor(x / y);
  return x - y * std::floor(x / y);
}

bool compares(const std::string& sign, const Value& a, const Value& b, Budget& budget) {
  if (sign == "==") return equal(a, b, budget);
  if (sign == "!=") return !equal(a, b, budget);
  if (sign == "<") return less(a, b, budget);
  if (sign == ">") return less(b, a, budget);
  // What has no order compares false in both directions only if it is not a number.
  if (sign == "<=") return less(a, b, budget) || equal(a, b, budget);
  if (sign == ">=") return less(b, a, budget) || equal(a, b, budget);
  return tested("in", a, Arguments{{b}, {}}, budget) == (sign == "in");
}

// Chains of operators of the same precedence are loops, not recursion: templates may be long.
class Parser {
 public:
  explicit Parser(TokenStream& stream) : in_(stream) {}

  Expression conditional() {
    const TokenStream::Nested nested(in_);
    Expression result = disjunction();
    while (in_.skip_name("if")) {
      Expression test = disjunction();
      Expression otherwise = constant(Undefined{"the value of an if without else"});
      const bool has_else = in_.skip_name("else");
      if (has_else) otherwise = conditional();
      result = [yes = std::move(result), test = std::move(test), no = std::move(otherwise)](
                   Rendering& r) { return test(r).truth() ? yes(r) : no(r); };
      if (has_else) break;
    }
    return result;
  }

  Expression disjunction() { return logical("or", true, &Parser::conjunction); }

 private:
  // and, or: the first value that decides, or the last.
  Expression logical(const char* word, bool decisive, Expression (Parser::*part)()) {
    std::vector<Expression> parts = {(this->*part)()};
    while (in_.skip_name(word)) parts.push_back((this->*part)());
    if (parts.size() == 1) return std::move(parts[0]);
    return [parts = std::move(parts), decisive](Rendering& r) {
      Value value;
      for (const Expression& one : parts) {
        value = one(r);
        if (value.truth() == decisive) break;
      }
      return value;
    };
  }

  Expression conjunction() { return logical("and", false, &Parser::negation); }

  Expression negation() {
    bool negative = false, any = false;
    while (in_.skip_name("not")) {
      negative = !negative;
      any = true;
    }
    Expression value = comparison();
    if (!any) return value;
    return [value = std::move(value), negative](Rendering& r) -> Value {
      return value(r).truth() != negative;
    };
  }

  std::string comparison_sign() {
    for (const char* sign : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (in_.skip(sign)) return sign;
    }
    if (in_.skip_name("in")) return "in";
    if (in_.sees_name("not") && in_.next().is(Kind::kName, "in")) {
      in_.take();
      in_.take();
      return "not in";
    }
    return "";
  }

  using Chain = std::vector<std::pair<std::string, Expression>>;

  Expression comparison() {
    Expression first = sum();
    Chain rest;
    const size_t line = in_.now().line;
    for (std::string sign = comparison_sign(); !sign.empty(); sign = comparison_sign())
      rest.emplace_back(sign, sum());
    if (rest.empty()) return first;
    return [first = std::move(first), rest = std::move(rest), line](Rendering& r) -> Value {
      Value left = first(r);
      for (const auto& [sign, part] : rest) {
        Value right = part(r);
        r.line = line;
        if (!compares(sign, left, right, r.budget)) return false;
        left = std::move(right);
      }
      return true;
    };
  }

  Expression chain(std::initializer_list<const char*> signs, Expression (Parser::*part)()) {
    Expression first = (this->*part)();
    Chain rest;
    const size_t line = in_.now().line;
    for (bool found = true; found;) {
      found = false;
      for (const char* sign : signs) {
        if (!in_.skip(sign)) continue;
        rest.emplace_back(sign, (this->*part)());
        found = true;
        break;
      }
    }
    if (rest.empty()) return first;
    return [first = std::move(first), rest = std::move(rest), line](Rendering& r) {
      Value value = first(r);
      for (const auto& [sign, operand] : rest) {
        const Value other = operand(r);
        r.line = line;
        value = arithmetic(sign, value, other, r.budget);
      }
      return value;
    };
  }

  Expression sum() { return chain({"+", "-"}, &Parser::concatenation); }

  Expression concatenation() {
    std::vector<Expression> parts = {product()};
    while (in_.skip("~")) parts.push_back(product());
    if (parts.size() == 1) return std::move(parts[0]);
    return [parts = std::move(parts)](Rendering& r) -> Value {
      std::string text;
      for (const Expression& part : parts) {
        text += part(r).str(r.budget);
        Budget::check_size(text.size());
      }
      return text;
    };
  }

  Expression product() { return chain({"*", "//", "/", "%"}, &Parser::power); }
  Expression power() { return chain({"**"}, &Parser::with_filters); }

  Expression with_filters() { return filters(signed_value()); }

  Expression signed_value() {
    const TokenStream::Nested nested(in_);
    const size_t line = in_.now().line;
    for (const char* sign : {"-", "+"}) {
      if (!in_.skip(sign)) continue;
      return postfix([value = signed_value(), sign = std::string(sign), line](Rendering& r) {
        const Value given = value(r);
        r.line = line;
        return given.as<double>() && sign == "-" ? Value(-given.number())
                                                 : whole_or_real(sign, given);
      });
    }
    return postfix(primary());
  }

  static Value whole_or_real(const std::string& sign, const Value& value) {
    if (value.as<double>()) return value;
    return whole_arithmetic(sign, 0, value.integer());
  }

  Expression primary() {
    const Token token = in_.take();
    if (token.kind == Kind::kName) {
      if (token.text == "true" || token.text == "True") return constant(true);
      if (token.text == "false" || token.text == "False") return constant(false);
      if (token.text == "none" || token.text == "None") return constant(nullptr);
      return [name = token.text](Rendering& r) {
        const Value* const found = r.scope->find(name);
        return found != nullptr ? *found : Value(Undefined{name});
      };
    }
    if (token.kind == Kind::kString) {
      std::string text = token.text;
      while (in_.now().kind == Kind::kString) text += in_.take().text;
      return constant(text);
    }
    if (token.kind == Kind::kNumber) return constant(token.number);
    if (token.is(Kind::kOperator, "(")) {
      if (in_.skip(")")) return constant(Value::list({}, true));
      Expression inner = parse_tuple(in_);
      in_.expect(")");
      return inner;
    }
    if (token.is(Kind::kOperator, "[")) return list();
    if (token.is(Kind::kOperator, "{")) return dict();
    in_.refuse("a value is expected before '" + token.text + "'");
  }

  Expression list() {
    std::vector<Expression> items;
    while (!in_.skip("]")) {
      items.push_back(conditional());
      if (!in_.sees("]")) in_.expect(",");
    }
    return [items = std::move(items)](Rendering& r) {
      std::vector<Value> values;
      for (const Expression& item : items) values.push_back(item(r));
      r.budget.spend(values.size());
      return Value::list(std::move(values));
    };
  }

  Expression dict() {
    std::vector<std::pair<Expression, Expression>> items;
    while (!in_.skip("}")) {
      Expression key = conditional();
      in_.expect(":");
      items.emplace_back(std::move(key), conditional());
      if (!in_.sees("}")) in_.expect(",");
    }
    return [items = std::move(items)](Rendering& r) {
      std::vector<std::pair<std::string, Value>> values;
      for (const auto& [key, value] : items) {
        const Value name = key(r);
        values.emplace_back(name.text("a key of a dict"), value(r));
      }
      r.budget.spend(values.size());
      return Value::dict(std::move(values));
    };
  }

  // A step that a value goes through: an attribute, an element, a call, a filter, a test.
  using Step = std::function<Value(const Value& value, Rendering& rendering)>;

  static Expression through(Expression value, std::vector<Step> steps) {
    if (steps.empty()) return value;
    return [value = std::move(value), steps = std::move(steps)](Rendering& r) {
      Value result = value(r);
      for (const Step& step : steps) result = step(result, r);
      return result;
    };
  }

  Expression postfix(Expression value) {
    std::vector<Step> steps;
    while (true) {
      const size_t line = in_.now().line;
      if (in_.skip(".")) {
        steps.push_back(attribute(line));
      } else if (in_.skip("[")) {
        steps.push_back(element(line));
      } else if (in_.skip("(")) {
        steps.push_back(call(line));
      } else {
        return through(std::move(value), std::move(steps));
      }
    }
  }

  Step attribute(size_t line) {
    if (in_.now().kind == Kind::kNumber && in_.now().number.as<int64_t>() != nullptr)
      return [key = in_.take().number, line](const Value& value, Rendering& r) {
        r.line = line;
        return element_of(value, key, r.budget);
      };
    return [name = in_.expect_name(), line](const Value& value, Rendering& r) {
      r.line = line;
      return attribute_of(value, name, r.budget);
    };
  }

  Step element(size_t line) {
    Expression parts[3] = {constant(nullptr), constant(nullptr), constant(nullptr)};
    bool slice = false;
    for (size_t i = 0; i < 3; ++i) {
      if (!in_.sees(":") && !in_.sees("]")) parts[i] = conditional();
      if (!in_.skip(":")) break;
      slice = true;
    }
    in_.expect("]");
    return [from = parts[0], to = parts[1], step = parts[2], slice, line](const Value& value,
                                                                          Rendering& r) {
      const Value key = from(r);
      const Value end = slice ? to(r) : Value(nullptr), by = slice ? step(r) : Value(nullptr);
      r.line = line;
      return slice ? slice_of(value, key, end, by, r.budget) : element_of(value, key, r.budget);
    };
  }

  Step call(size_t line) {
    return [arguments = parse_arguments(in_), line](const Value& value, Rendering& r) {
      const auto* const function = value.as<std::shared_ptr<Function>>();
      r.line = line;
      // Also methods outside of the subset.
      if (function == nullptr) throw Problem("it calls " + value.type(), value.is_undefined());
      const Arguments given = arguments.evaluated(r);
      r.line = line;
      r.budget.spend();
      return (*function)->call(given);
    };
  }

  Expression filters(Expression value) {
    std::vector<Step> steps;
    while (true) {
      const size_t line = in_.now().line;
      if (in_.skip("|")) {
        const std::string name = in_.expect_name();
        if (!is_filter(name)) in_.refuse("the filter '" + name + "' is not supported", true);
        ParsedArguments arguments;
        if (in_.skip("(")) arguments = parse_arguments(in_);
        steps.push_back(
            [name, arguments = std::move(arguments), line](const Value& input, Rendering& r) {
              const Arguments given = arguments.evaluated(r);
              r.line = line;
              return filtered(name, input, given, r.budget);
            });
      } else if (in_.skip_name("is")) {
        steps.push_back(test(line));
      } else if (in_.skip("(")) {
        steps.push_back(call(line));
      } else {
        return through(std::move(value), std::move(steps));
      }
    }
  }

  Step test(size_t line) {
    const bool negative = in_.skip_name("not");
    const std::string name = in_.expect_name();
    if (!is_test(name)) in_.refuse("the test '" + name + "' is not supported", true);
    ParsedArguments arguments;
    if (in_.skip("(")) {
      arguments = parse_arguments(in_);
    } else if (starts_argument()) {
      arguments.positional.push_back(postfix(primary()));
    }
    return [name, arguments = std::move(arguments), negative, line](const Value& input,
                                                                    Rendering& r) -> Value {
      const Arguments given = arguments.evaluated(r);
      r.line = line;
      return tested(name, input, given, r.budget) != negative;
    };
  }

  // A test may have one argument without parentheses.
  bool starts_argument() const {
    const Token& token = in_.now();
    if (token.kind == Kind::kString || token.kind == Kind::kNumber) return true;
    if (token.kind == Kind::kOperator) return token.text == "[" || token.text == "{";
    if (token.kind != Kind::kName) return false;
    for (const char* other : {"else", "or", "and", "if", "is", "in", "not", "recursive"}) {
      if (token.text == other) return false;
    }
    return true;
  }

  TokenStream& in_;
};

}  // namespace

bool TokenStream::skip(std::string_view text, Token::Kind kind) {
  if (!sees(text, kind)) return false;
  take();
  return true;
}

void TokenStream::expect(std::string_view text, Token::Kind kind) {
  if (!skip(text, kind)) refuse(fmt::format("'{}' is expected before '{}'", text, now().text));
}

std::string TokenStream::expect_name() {
  if (now().kind != Token::Kind::kName)
    refuse(fmt::format("a name is expected before '{}'", now().text));
  return take().text;
}

void TokenStream::refuse(const std::string& message, bool unsupported) const {
  throw ProblemInLine(now().line, Problem(message, unsupported));
}

TokenStream::Nested::Nested(TokenStream& stream) : stream_(stream) {
  if (stream.depth_ == 50) stream.refuse("it nests more than 50 deep");
  ++stream.depth_;
}

Arguments ParsedArguments::evaluated(Rendering& rendering) const {
  Arguments result;
  for (const Expression& one : positional) result.positional.push_back(one(rendering));
  for (const auto& [name, one] : named) result.named.emplace_back(name, one(rendering));
  return result;
}

ParsedArguments parse_arguments(TokenStream& stream) {
  ParsedArguments result;
  while (!stream.skip(")")) {
    if (stream.sees("*") || stream.sees("**"))
      stream.refuse("arguments with * are not supported", true);
    if (stream.now().kind == Token::Kind::kName && stream.next().is(Token::Kind::kOperator, "=")) {
      const std::string name = stream.take().text;
      stream.take();
      result.named.emplace_back(name, parse_expression(stream));
    } else {
      if (!result.named.empty()) stream.refuse("an argument without a name follows one with");
      result.positional.push_back(parse_expression(stream));
    }
    if (!stream.sees(")")) stream.expect(",");
  }
  return result;
}

Expression parse_expression(TokenStream& stream, bool conditional) {
  Parser parser(stream);
  return conditional ? parser.conditional() : parser.disjunction();
}

Expression parse_tuple(TokenStream& stream, bool conditional) {
  std::vector<Expression> items = {parse_expression(stream, conditional)};
  bool tuple = false;
  while (stream.skip(",")) {
    tuple = true;
    const Token& token = stream.now();
    if (token.is(Token::Kind::kOperator, ")") || token.kind == Token::Kind::kBlockEnd ||
        token.kind == Token::Kind::kVariableEnd)
      break;
    items.push_back(parse_expression(stream, conditional));
  }
  if (!tuple) return std::move(items[0]);
  return [items = std::move(items)](Rendering& r) {
    std::vector<Value> values;
    for (const Expression& item : items) values.push_back(item(r));
    return Value::list(std::move(values), /*is_tuple=*/true);
  };
}

}  // namespace coupler::jinja
