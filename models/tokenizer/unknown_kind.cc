#include "tokenizer/unknown_kind.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include "io/file_text.h"

namespace coupler {

void refuse_kind(const JsonObject& description, const std::string& those_that_are) {
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("{}: '{}' is not there; those that are: {}", description.where(),
                  shown(description.text("type", "")), those_that_are),
      {.subject = description.where(),
       .hint =
           "byte-level BPE, sentencepiece-style BPE and WordPiece are read; give tokens made by "
           "transformers' AutoTokenizer for models with another tokenizer"});
}

}  // namespace coupler
