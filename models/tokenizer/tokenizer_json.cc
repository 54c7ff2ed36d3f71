#include "tokenizer/tokenizer_json.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include "base/text.h"

namespace coupler {

void refuse_kind(const JsonObject& description, const std::string& those_that_are) {
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("{}: '{}' is not supported; supported: {}", description.where(),
                  for_message(description.text("type", "")), those_that_are),
      {.subject = description.where(),
       .hint = "use byte-level BPE, sentencepiece-style BPE or WordPiece; for models with another "
               "tokenizer, pass tokens made by transformers' AutoTokenizer"});
}

}  // namespace coupler
