// Rendering: the state of a template that runs. Used by one thread. Does not depend on LibTorch.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/value.h"

namespace coupler::jinja {

struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string, Value>> variables;

  // Null if there is none, here or in the scopes around.
  const Value* find(std::string_view name) const {
    for (const auto& [known, value] : variables) {
      if (known == name) return &value;
    }
    return parent == nullptr ? nullptr : parent->find(name);
  }
  void set(const std::string& name, Value value) {
    for (auto& [known, old] : variables) {
      if (known == name) {
        old = std::move(value);
        return;
      }
    }
    variables.emplace_back(name, std::move(value));
  }
};

struct Rendering {
  Budget budget;
  std::string output;
  Scope outermost;
  Scope* scope = &outermost;
  size_t line = 1;   // of what runs, for messages
  size_t calls = 0;  // macros that wait for others
  // All of them: they can refer to each other in circles.
  std::vector<std::shared_ptr<Dict>> namespaces;

  Rendering() = default;
  Rendering(const Rendering&) = delete;
  Rendering& operator=(const Rendering&) = delete;
  ~Rendering() {
    for (const auto& each : namespaces) each->items.clear();
  }

  void write(std::string_view text) {
    Budget::check_size(output.size() + text.size());
    output += text;
  }
};

// A scope within the current one, as long as this lives.
class InnerScope {
 public:
  explicit InnerScope(Rendering& rendering, Scope* parent)
      : rendering_(rendering), before_(rendering.scope) {
    scope_.parent = parent;
    rendering.scope = &scope_;
  }
  ~InnerScope() { rendering_.scope = before_; }
  InnerScope(const InnerScope&) = delete;
  InnerScope& operator=(const InnerScope&) = delete;

  Scope* operator->() { return &scope_; }

 private:
  Rendering& rendering_;
  Scope scope_;
  Scope* before_;
};

}  // namespace coupler::jinja
