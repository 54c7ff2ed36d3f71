#include "base/json.h"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "base/text.h"

namespace coupler {

nlohmann::json parse_strict_json(std::string_view text, int max_nesting) {
  using Event = nlohmann::json::parse_event_t;
  // The parser would take it for the end and ignore what follows.
  if (text.find('\0') != std::string_view::npos) throw JsonProblem{"", "contains a NUL byte"};
  std::vector<std::set<std::string>> objects;  // the keys so far, of each object that is open
  const auto watch = [&](int depth, Event event, nlohmann::json& value) {
    switch (event) {
      case Event::object_start:
        objects.emplace_back();
        [[fallthrough]];
      case Event::array_start:
        if (depth >= max_nesting)
          throw JsonProblem{"", fmt::format("more than {} levels of brackets", max_nesting)};
        break;
      case Event::key: {
        auto& name = value.get_ref<std::string&>();
        if (!objects.back().insert(name).second)
          throw JsonProblem{for_message(name), "is given twice"};
        break;
      }
      case Event::object_end:
        objects.pop_back();
        break;
      default:
        break;
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::parse_error& error) {
    throw JsonProblem{"", fmt::format("is not valid JSON in UTF-8 at byte {}", error.byte)};
  } catch (const nlohmann::json::out_of_range&) {
    throw JsonProblem{"", "contains a number that is too large"};
  }
}

}  // namespace coupler
