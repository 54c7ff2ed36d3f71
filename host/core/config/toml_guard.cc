#include "config/toml_guard.h"

#include <algorithm>
#include <vector>

namespace coupler {
namespace {

class NestingScanner {
 public:
  NestingScanner(std::string_view text, int max_depth) : text_(text), max_depth_(max_depth) {}

  std::optional<TextPosition> scan() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == '"' || c == '\'') {
        skip_string(c);
      } else {
        count(c);
        ++at_;
        if (depth_ > max_depth_) return position();
      }
    }
    return std::nullopt;
  }

 private:
  // The dots of the current key deepen everything up to the next key of the same level.
  void count(char c) {
    if (c == '[' || c == '{') {
      dots_.push_back(0);
      ++depth_;
    } else if ((c == ']' || c == '}') && dots_.size() > 1) {
      depth_ -= dots_.back() + 1;
      dots_.pop_back();
    } else if (c == '.') {
      ++dots_.back();
      ++depth_;
    } else if (c == ',' || (c == '\n' && dots_.size() == 1)) {
      depth_ -= dots_.back();
      dots_.back() = 0;
    }
  }

  void skip_string(char quote) {
    const bool multi_line =
        text_.substr(at_, 3) == std::string_view(quote == '"' ? "\"\"\"" : "'''");
    const size_t quotes = multi_line ? 3 : 1;
    at_ += quotes;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\\' && quote == '"') {
        at_ += 2;
      } else if (c == '\n' && !multi_line) {
        return;  // unterminated: the parser will complain
      } else if (c == quote && closes(quote, quotes)) {
        at_ += quotes;
        while (multi_line && at_ < text_.size() && text_[at_] == quote) ++at_;  // up to two more
        return;
      } else {
        ++at_;
      }
    }
    at_ = text_.size();
  }

  bool closes(char quote, size_t quotes) const {
    return quotes == 1 || text_.substr(at_, 3) == std::string_view(quote == '"' ? "\"\"\"" : "'''");
  }

  TextPosition position() const {
    const std::string_view before = text_.substr(0, at_ - 1);
    const size_t newline = before.rfind('\n');
    return {static_cast<size_t>(std::count(before.begin(), before.end(), '\n')) + 1,
            newline == std::string_view::npos ? before.size() + 1 : before.size() - newline};
  }

  std::string_view text_;
  int max_depth_;
  size_t at_ = 0;
  int depth_ = 0;
  std::vector<int> dots_ = {0};
};

}  // namespace

std::optional<TextPosition> find_deep_nesting(std::string_view text, int max_depth) {
  return NestingScanner(text, max_depth).scan();
}

}  // namespace coupler
