#include "hooks/cdi/document.hpp"

#include <set>
#include <string>
#include <vector>

namespace spc {
namespace {

using Json = nlohmann::json;

/// Looks over a document without building it, and remembers the first reason to refuse it.
class Inspector final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return count(); }
  bool boolean(bool) override { return count(); }
  bool number_integer(number_integer_t) override { return count(); }
  bool number_unsigned(number_unsigned_t) override { return count(); }
  bool number_float(number_float_t, const string_t&) override { return count(); }
  bool string(string_t&) override { return count(); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    return keys_.back().insert(name).second || refuse("key " + in_quotes(name) + " is given twice");
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return refuse("is not JSON (at byte " + std::to_string(position) + ")");
  }

  [[nodiscard]] const std::string& reason() const { return reason_; }

 private:
  bool refuse(std::string why) {
    if (reason_.empty()) reason_ = std::move(why);
    return false;
  }
  bool count() { return ++values_ <= kCdiMostValues || refuse("has more than " + std::to_string(kCdiMostValues) + " values"); }
  bool open() {
    keys_.emplace_back();
    return count() && (keys_.size() <= kCdiMostDepth || refuse("is nested too deep"));
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  std::vector<std::set<std::string>> keys_;  // of the containers that are open
  std::size_t values_ = 0;
  std::string reason_;
};

}  // namespace

Result<Json> parse_cdi_json(std::string_view text) {
  try {
    Inspector inspector;
    if (!Json::sax_parse(text, &inspector)) return Error(ErrorKind::corrupt, inspector.reason());
    Json document = Json::parse(text, nullptr, false);
    if (document.is_discarded()) return Error(ErrorKind::corrupt, "is not JSON");
    return document;
  } catch (const std::exception& error) {
    return Error(ErrorKind::corrupt, printable(error.what()));
  }
}

Result<CdiDocument> parse_cdi_document(std::string_view text) {
  if (text.size() > kCdiMostBytes) return Error(ErrorKind::invalid, "is larger than 1 MiB");
  CdiDocument document;
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return Error(ErrorKind::corrupt, "is empty");
  document.from_yaml = text[first] != '{';
  document.tree = SPC_TRY(document.from_yaml ? parse_cdi_yaml(text) : parse_cdi_json(text));
  return document;
}

}  // namespace spc
