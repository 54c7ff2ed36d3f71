#include "tokenizer/post_processor.h"

#include "tokenizer/tokenizer_json.h"

namespace coupler {
namespace {

// ["[SEP]", 102]
int64_t id_in_pair(const JsonObject& description, const char* key) {
  const nlohmann::json& pair = description.raw(key);
  if (!pair.is_array() || pair.size() != 2 || !pair[1].is_number_integer())
    description.refuse(key, "is not a pair of a token and its id",
                       "save the tokenizer again; this file is damaged");
  return pair[1].get<int64_t>();
}

PostProcessor of_template(const JsonObject& description) {
  PostProcessor post_processor;
  bool after = false;
  const auto tokens = description.maybe_object("special_tokens");
  for (const JsonObject& item : description.objects("single")) {
    if (item.has("Sequence")) {
      after = true;
      continue;
    }
    const std::string name = item.object("SpecialToken").text("id");
    if (!tokens)
      description.refuse("special_tokens", "is missing, but '" + name + "' is used",
                         "save the tokenizer again; this file is damaged");
    for (const int64_t id : tokens->object(name.c_str()).integers("ids"))
      (after ? post_processor.after : post_processor.before).push_back(id);
  }
  return post_processor;
}

}  // namespace

PostProcessor make_post_processor(const std::optional<JsonObject>& description) {
  if (!description) return {};
  const std::string type = description->text("type");
  if (type == "ByteLevel") return {};  // it only changes offsets
  if (type == "TemplateProcessing") return of_template(*description);
  if (type == "BertProcessing" || type == "RobertaProcessing")
    return {{id_in_pair(*description, "cls")}, {id_in_pair(*description, "sep")}};
  if (type == "Sequence") {
    PostProcessor post_processor;
    for (const JsonObject& part : description->objects("processors")) {
      const PostProcessor around = make_post_processor(part);
      post_processor.before.insert(post_processor.before.begin(), around.before.begin(),
                                   around.before.end());
      post_processor.after.insert(post_processor.after.end(), around.after.begin(),
                                  around.after.end());
    }
    return post_processor;
  }
  refuse_kind(*description,
              "Sequence, ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing");
}

}  // namespace coupler
