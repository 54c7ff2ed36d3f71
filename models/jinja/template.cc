// Statements, and templates as a whole.
#include "jinja/template.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "jinja/functions.h"
#include "jinja/parser.h"
#include "jinja/rendering.h"

namespace coupler::jinja {
namespace {

using Kind = Token::Kind;

// What a loop or an assignment gives a value to: "name", "key, value" or "namespace.name".
struct Target {
  std::vector<std::string> names;
  std::string attribute;  // of a namespace

  void set(const Value& value, Rendering& r) const {
    if (!attribute.empty()) {
      const Value* const found = r.scope->find(names[0]);
      const auto* const dict = found == nullptr ? nullptr : found->as_dict();
      if (dict == nullptr || !(*dict)->is_namespace)
        throw Problem(
            fmt::format("it sets '{}' of '{}', which is not a namespace", attribute, names[0]));
      for (auto& [known, old] : (*dict)->items) {
        if (known != attribute) continue;
        old = value;
        return;
      }
      (*dict)->items.emplace_back(attribute, value);
    } else if (names.size() == 1) {
      r.scope->set(names[0], value);
    } else {
      const auto parts = iterated(value, r.budget);
      if (parts.size() != names.size())
        throw Problem(
            fmt::format("it divides {} values among {} names", parts.size(), names.size()));
      for (size_t i = 0; i < parts.size(); ++i) r.scope->set(names[i], parts[i]);
    }
  }
};

Value loop_variable(const std::vector<Value>& items, size_t i, Budget& budget) {
  const auto number = [](size_t count) { return static_cast<int64_t>(count); };
  std::vector<std::pair<std::string, Value>> fields = {
      {"index", number(i + 1)},
      {"index0", number(i)},
      {"revindex", number(items.size() - i)},
      {"revindex0", number(items.size() - i - 1)},
      {"first", i == 0},
      {"last", i + 1 == items.size()},
      {"length", number(items.size())},
      {"cycle",
       std::make_shared<Function>(Function{"cycle", [i, &budget](const Arguments& given) {
                                             if (given.positional.empty())
                                               throw Problem("'cycle' needs values");
                                             budget.spend();
                                             return given.positional[i % given.positional.size()];
                                           }})}};
  if (i > 0) fields.emplace_back("previtem", items[i - 1]);
  if (i + 1 < items.size()) fields.emplace_back("nextitem", items[i + 1]);
  auto loop = std::make_shared<Dict>();
  loop->items = std::move(fields);
  return loop;
}

struct Loop {
  Target target;
  Expression iterable;
  std::optional<Expression> condition;
  Statement body, otherwise;

  Flow run(Rendering& r) const {
    std::vector<Value> items = iterated(iterable(r), r.budget);
    if (condition) {
      std::vector<Value> kept;
      for (Value& item : items) {
        const InnerScope scope(r, r.scope);
        target.set(item, r);
        if ((*condition)(r).truth()) kept.push_back(std::move(item));
      }
      items = std::move(kept);
    }
    for (size_t i = 0; i < items.size(); ++i) {
      r.budget.spend();
      InnerScope scope(r, r.scope);
      target.set(items[i], r);
      scope->set("loop", loop_variable(items, i, r.budget));
      if (body(r) == Flow::kBreak) break;
    }
    return items.empty() ? otherwise(r) : Flow::kOn;
  }
};

// What `body` writes.
std::string captured(const Statement& body, Rendering& r) {
  std::string before = std::exchange(r.output, {});
  body(r);
  return std::exchange(r.output, std::move(before));
}

struct Macro {
  std::string name;
  std::vector<std::pair<std::string, std::optional<Expression>>> parameters;
  Statement body;

  Value call(const Arguments& given, Rendering& r) const {
    if (r.calls == 20) throw Problem("the macro '" + name + "' calls itself more than 20 deep");
    if (given.positional.size() > parameters.size())
      throw Problem(fmt::format("the macro '{}' takes {} arguments, not {}", name,
                                parameters.size(), given.positional.size()));
    for (const auto& [argument, value] : given.named) {
      if (std::none_of(parameters.begin(), parameters.end(),
                       [&, known = &argument](const auto& one) { return one.first == *known; }))
        throw Problem(fmt::format("the macro '{}' has no argument '{}'", name, argument));
    }
    const size_t line = r.line;
    InnerScope scope(r, &r.outermost);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto& [parameter, otherwise] = parameters[i];
      const auto named =
          std::find_if(given.named.begin(), given.named.end(),
                       [&, known = &parameter](const auto& one) { return one.first == *known; });
      scope->set(parameter, i < given.positional.size()  ? given.positional[i]
                            : named != given.named.end() ? named->second
                            : otherwise                  ? (*otherwise)(r)
                                                         : Value(Undefined{parameter}));
    }
    ++r.calls;
    const std::string text = captured(body, r);
    --r.calls;
    r.line = line;
    return text;
  }
};

class StatementParser {
 public:
  explicit StatementParser(TokenStream& stream) : in_(stream) {}

  // Up to one of these tags, whose name is taken. line: of the tag that they end.
  Statement until(std::initializer_list<const char*> ends, size_t line, std::string* found) {
    const TokenStream::Nested nested(in_);
    std::vector<Statement> parts;
    while (true) {
      const Token token = in_.take();
      if (token.kind == Kind::kEnd) {
        if (ends.size() == 0) break;
        throw ProblemInLine(line, Problem(fmt::format("'{}' is missing", *(ends.end() - 1))));
      }
      if (token.kind == Kind::kText) {
        parts.emplace_back([text = token.text](Rendering& r) {
          r.write(text);
          return Flow::kOn;
        });
      } else if (token.kind == Kind::kVariableBegin) {
        Expression value = parse_tuple(in_);
        in_.expect("}}", Kind::kVariableEnd);
        parts.emplace_back([value = std::move(value), line = token.line](Rendering& r) {
          r.line = line;
          r.write(value(r).str(r.budget));
          return Flow::kOn;
        });
      } else {
        const std::string name = in_.expect_name();
        if (std::find(ends.begin(), ends.end(), name) != ends.end()) {
          *found = name;
          break;
        }
        parts.push_back(tag(name, token.line));
      }
    }
    if (parts.size() == 1) return std::move(parts[0]);
    return [parts = std::move(parts)](Rendering& r) {
      for (const Statement& part : parts) {
        if (const Flow flow = part(r); flow != Flow::kOn) return flow;
      }
      return Flow::kOn;
    };
  }

 private:
  void end_tag() { in_.expect("%}", Kind::kBlockEnd); }

  Statement block(const char* end, size_t line) {
    std::string found;
    Statement body = until({end}, line, &found);
    end_tag();
    return body;
  }

  Statement tag(const std::string& name, size_t line) {
    if (name == "if") return branches(line);
    if (name == "for") return loop(line);
    if (name == "set") return assignment(line);
    if (name == "macro") return macro(line);
    if (name == "generation") {  // marks what the assistant said, for training
      end_tag();
      return block("endgeneration", line);
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) in_.refuse("'" + name + "' is not in a loop");
      end_tag();
      return [flow = name == "break" ? Flow::kBreak : Flow::kContinue](Rendering&) { return flow; };
    }
    for (const char* other : {"block", "call", "extends", "filter", "from", "import", "include",
                              "with", "autoescape", "do", "trans", "debug"}) {
      if (name == other)
        throw ProblemInLine(line, Problem("'" + name + "' is not supported", true));
    }
    throw ProblemInLine(line, Problem("the tag '" + name + "' is not expected"));
  }

  Statement branches(size_t line) {
    std::vector<std::pair<Expression, Statement>> all;
    Statement otherwise = [](Rendering&) { return Flow::kOn; };
    for (std::string found = "elif"; found == "elif";) {
      Expression test = parse_tuple(in_);
      end_tag();
      Statement body = until({"elif", "else", "endif"}, line, &found);
      all.emplace_back(std::move(test), std::move(body));
      if (found != "else") continue;
      end_tag();
      otherwise = until({"endif"}, line, &found);
    }
    end_tag();
    return [all = std::move(all), otherwise = std::move(otherwise)](Rendering& r) {
      for (const auto& [test, body] : all) {
        if (test(r).truth()) return body(r);
      }
      return otherwise(r);
    };
  }

  Target target() {
    Target result;
    const bool bracketed = in_.skip("(");
    do {
      result.names.push_back(in_.expect_name());
    } while (in_.skip(","));
    if (bracketed) in_.expect(")");
    return result;
  }

  Statement loop(size_t line) {
    auto result = std::make_shared<Loop>();
    result->target = target();
    if (!in_.skip_name("in")) in_.refuse("'in' is expected in 'for'");
    result->iterable = parse_tuple(in_, /*conditional=*/false);
    if (in_.skip_name("if")) result->condition = parse_expression(in_);
    if (in_.sees_name("recursive")) in_.refuse("'recursive' is not supported", true);
    end_tag();
    std::string found;
    ++loops_;
    result->body = until({"else", "endfor"}, line, &found);
    --loops_;
    result->otherwise = [](Rendering&) { return Flow::kOn; };
    if (found == "else") {
      end_tag();
      result->otherwise = until({"endfor"}, line, &found);
    }
    end_tag();
    return [result, line](Rendering& r) {
      r.line = line;
      return result->run(r);
    };
  }

  Statement assignment(size_t line) {
    Target to = target();
    if (to.names.size() == 1 && in_.skip(".")) to.attribute = in_.expect_name();
    if (in_.skip("=")) {
      Expression value = parse_tuple(in_);
      end_tag();
      return [to, value = std::move(value), line](Rendering& r) {
        r.line = line;
        to.set(value(r), r);
        return Flow::kOn;
      };
    }
    if (in_.sees("|")) in_.refuse("'set' with a filter is not supported", true);
    end_tag();
    return [to, body = block("endset", line)](Rendering& r) {
      std::string text;
      {
        const InnerScope scope(r, r.scope);
        text = captured(body, r);
      }
      to.set(text, r);
      return Flow::kOn;
    };
  }

  Statement macro(size_t line) {
    // A macro sees the outermost scope; in a loop or another macro it would have to see theirs.
    if (loops_ > 0 || in_macro_)
      in_.refuse("'macro' inside of a loop or macro is not supported", true);
    auto result = std::make_shared<Macro>();
    result->name = in_.expect_name();
    in_.expect("(");
    while (!in_.skip(")")) {
      const std::string parameter = in_.expect_name();
      std::optional<Expression> otherwise;
      if (in_.skip("=")) otherwise = parse_expression(in_);
      result->parameters.emplace_back(parameter, std::move(otherwise));
      if (!in_.sees(")")) in_.expect(",");
    }
    end_tag();
    in_macro_ = true;
    result->body = block("endmacro", line);
    in_macro_ = false;
    return [result](Rendering& r) {
      r.scope->set(result->name, std::make_shared<Function>(
                                     Function{result->name, [result, &r](const Arguments& given) {
                                                return result->call(given, r);
                                              }}));
      return Flow::kOn;
    };
  }

  TokenStream& in_;
  size_t loops_ = 0;
  bool in_macro_ = false;
};

}  // namespace

Statement parse_template(TokenStream& stream) {
  std::string none;
  return StatementParser(stream).until({}, 1, &none);
}

Template::Template(const std::string& source) {
  TokenStream stream(tokens_of(source));
  try {
    body_ = std::make_shared<const Statement>(parse_template(stream));
  } catch (const ProblemInLine&) {
    throw;
  } catch (const Problem& problem) {
    throw ProblemInLine(stream.now().line, problem);
  }
}

std::string Template::render(const Variables& variables) const {
  Rendering rendering;
  rendering.outermost.variables = variables;
  for (auto& [name, function] : global_functions(rendering.budget, rendering.namespaces)) {
    if (rendering.outermost.find(name) == nullptr) rendering.outermost.set(name, function);
  }
  try {
    (*body_)(rendering);
  } catch (const Problem& problem) {
    throw ProblemInLine(rendering.line, problem);
  }
  return std::move(rendering.output);
}

}  // namespace coupler::jinja
